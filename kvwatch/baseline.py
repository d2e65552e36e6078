"""What an engine's calm time was like, learned step by step while there was traffic and no trouble."""

from __future__ import annotations

from dataclasses import dataclass

from kvwatch.quantity import UNKNOWN, Interval, exactly
from kvwatch.span import Buckets, Frame, Span, quantile


@dataclass(frozen=True, slots=True)
class Baseline:
    """What calm time with traffic looked like: bucket increases of first tokens, and mean rates.

    ``scrapes`` and ``seconds`` say how much history stands behind it. ``running``, ``sequences`` and ``resident`` are requests and tokens
    times seconds. Counts are halved when they grow large, so that the baseline follows a slow drift without forgetting a night.
    """

    identity: str = ""
    scrapes: int = 0
    seconds: float = 0.0
    ttft: Buckets = ()
    tokens: float = 0.0
    token_seconds: float = 0.0
    queried: float = 0.0
    hit: float = 0.0
    running: float = 0.0
    running_seconds: float = 0.0
    sequences: float = 0.0
    resident: float = 0.0

    LEAST_SCRAPES = 12
    LEAST_SECONDS = 15.0
    LEAST_FIRST_TOKENS = 20
    MOST_FIRST_TOKENS = 100_000.0

    @property
    def ready(self) -> bool:
        """Whether enough calm traffic was seen to compare with."""
        return self.scrapes >= self.LEAST_SCRAPES and self.seconds >= self.LEAST_SECONDS

    def ttft_quantile(self, q: float) -> Interval:
        """Seconds to first token in calm time; unknown before enough first tokens were seen."""
        if not self.ready or not self.ttft or self.ttft[-1][1] < self.LEAST_FIRST_TOKENS:
            return UNKNOWN
        return quantile(self.ttft, q)

    def token_rate(self) -> Interval:
        """Generated tokens per second in calm time."""
        return exactly(self.tokens / self.token_seconds) if self.ready and self.token_seconds > 0 else UNKNOWN

    def hit_ratio(self) -> Interval:
        """Share of looked-up tokens found in L1 in calm time."""
        return exactly(min(1.0, self.hit / self.queried)) if self.ready and self.queried > 0 else UNKNOWN

    def mean_sequence(self) -> Interval:
        """Resident tokens per running request in calm time."""
        return exactly(self.resident / self.sequences) if self.ready and self.sequences > 0 and self.resident > 0 else UNKNOWN

    def mean_running(self) -> Interval:
        """Requests running in calm time."""
        return exactly(self.running / self.running_seconds) if self.ready and self.running_seconds > 0 else UNKNOWN

    def learn(self, before: Frame, after: Frame) -> Baseline:
        """Take one calm step into account; a step without traffic teaches nothing."""
        step = Span((before, after))
        generated, prompts = step.increase("generation_tokens"), step.increase("prompt_tokens")
        first = step.buckets("ttft")
        traffic = any(i is not None and i > 0 for i in (generated, prompts)) or bool(first and first[-1][1] > 0)
        if not traffic:
            return self
        seconds = after.at - before.at
        queried, hit = step.increase("l1_queried_tokens"), step.increase("l1_hit_tokens")
        known_hits = queried is not None and hit is not None
        running, held = after.state.running.exact, _used_tokens(after)
        return Baseline(
            identity=self.identity,
            scrapes=self.scrapes + (1 if self.scrapes else 2),  # the first step stands between two scrapes
            seconds=self.seconds + seconds,
            ttft=_faded(_merged(self.ttft, first or ()), self.MOST_FIRST_TOKENS),
            tokens=self.tokens + (generated if generated is not None else 0.0),
            token_seconds=self.token_seconds + (seconds if generated is not None else 0.0),
            queried=self.queried + (queried if known_hits and queried is not None else 0.0),
            hit=self.hit + (hit if known_hits and hit is not None else 0.0),
            running=self.running + (seconds * running if running is not None else 0.0),
            running_seconds=self.running_seconds + (seconds if running is not None else 0.0),
            sequences=self.sequences + (seconds * running if running is not None and held is not None else 0.0),
            resident=self.resident + (seconds * held if running is not None and held is not None else 0.0),
        )


def _used_tokens(frame: Frame) -> float | None:
    pool = frame.state.pool("l1", "full")
    return pool.used.exact if pool is not None and pool.unit == "tokens" else None


def _merged(a: Buckets, b: Buckets) -> Buckets:
    """Sum two sets of cumulative buckets; when the edges changed the newer ones begin anew."""
    if not a or not b:
        return a or b
    if [edge for edge, _ in a] != [edge for edge, _ in b]:
        return b
    return tuple((edge, x + y) for (edge, x), (_, y) in zip(a, b, strict=True))


def _faded(buckets: Buckets, most: float) -> Buckets:
    return tuple((edge, count / 2) for edge, count in buckets) if buckets and buckets[-1][1] > most else buckets
