"""A small engine that keeps the real ones' rules of admission, preemption and eviction, and prints their /metrics.

One second is one step. Requests arrive at random, prompts are prefilled, tokens are made; vLLM admits while the whole prompt fits and
preempts the newest when output outgrows the pool; SGLang charges prompt plus ``max_new_tokens`` and keeps a reserve for running
requests, and retracts when it was too low. Finished sequences stay as evictable cache; with a host tier they are copied by its policy.
The same seed gives the same run.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

EDGES = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
PROMPT_EDGES = (64, 256, 1024, 4096, 16384)


@dataclass(frozen=True, slots=True)
class Setup:
    """One configuration: sizes in tokens, speeds in tokens per second, ``rate`` in requests per second by stretch of time."""

    engine: str
    capacity: int
    max_running: int
    prompt: int
    output: int
    max_new: int
    rates: tuple[tuple[int, float], ...]
    prefill_speed: int
    decode_speed: int
    host: int = 0
    policy: str = "write_through"

    @property
    def seconds(self) -> int:
        """Length of the run."""
        return sum(length for length, _ in self.rates)


@dataclass(slots=True)
class Request:
    """One request: tokens it holds, tokens still to prefill and to generate."""

    born: float
    prompt: int
    output: int
    held: int = 0
    made: int = 0
    first: bool = False


@dataclass(slots=True)
class Hist:
    """A histogram as engines export it."""

    edges: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    sum: float = 0.0

    def add(self, value: float) -> None:
        """Observe one value."""
        self.counts = self.counts or [0] * (len(self.edges) + 1)
        self.counts[next((i for i, e in enumerate(self.edges) if value <= e), len(self.edges))] += 1
        self.sum += value

    def lines(self, name: str, labels: str) -> list[str]:
        """Its samples, cumulative."""
        counts, total, out = self.counts or [0] * (len(self.edges) + 1), 0, [f"# TYPE {name} histogram"]
        for edge, n in zip([*map(str, self.edges), "+Inf"], counts, strict=True):
            total += n
            out.append(f'{name}_bucket{{{labels},le="{edge}"}} {total}')
        return [*out, f"{name}_count{{{labels}}} {total}", f"{name}_sum{{{labels}}} {self.sum}"]


class Engine:
    """The engine itself. ``bound`` says whether the head of the queue waited for L1 in the last step, ``capped`` for a sequence slot."""

    def __init__(self, setup: Setup, seed: int) -> None:
        """Start empty."""
        self.s, self.random = setup, random.Random(seed)
        self.running: list[Request] = []
        self.waiting: list[Request] = []
        self.cached = self.host = self.now = 0
        self.evicted = self.written = self.dropped_prefixes = 0
        self.preempted = self.generated = self.prompts = self.computed = self.finished = 0
        self.ttft, self.prompt_sizes, self.output_sizes = Hist(EDGES), Hist(PROMPT_EDGES), Hist(PROMPT_EDGES)
        self.bound = self.capped = False
        self.ratio = 0.7

    @property
    def used(self) -> int:
        """Tokens held by running requests."""
        return sum(r.held for r in self.running)

    @property
    def free(self) -> int:
        """Tokens admission can get: cached ones can be taken."""
        return self.s.capacity - self.used

    def step(self, rate: float) -> None:
        """Let one second pass."""
        self.now += 1
        for _ in range(self._arrivals(rate)):
            prompt = max(16, int(self.random.lognormvariate(0, 0.4) * self.s.prompt))
            output = min(self.s.max_new, max(4, int(self.random.expovariate(1 / self.s.output))))
            self.waiting.append(Request(self.now, min(prompt, self.s.capacity // 2), min(output, self.s.capacity // 4)))
        self._decode()
        self._admit()

    def _arrivals(self, rate: float) -> int:
        whole = int(rate)
        return whole + (self.random.random() < rate - whole)

    def _admit(self) -> None:
        budget = self.s.prefill_speed
        self.bound = self.capped = False
        while self.waiting and budget > 0:
            head = self.waiting[0]
            need = head.prompt + head.made
            if len(self.running) >= self.s.max_running:
                self.capped = True
                return
            if not self._fits(head, need):
                self.bound = True
                return
            self.waiting.pop(0)
            head.held = need
            budget -= need
            self.computed += need
            self.running.append(head)
            self._make_room()
            if not head.first:
                head.first = True
                self.ttft.add(self.now - head.born + 0.02 + need / self.s.prefill_speed)
                self.prompts += head.prompt

    def _fits(self, head: Request, need: int) -> bool:
        if self.s.engine == "vllm":
            return need <= self.free
        reserve = sum(min(self.s.max_new - r.made, 4096) for r in self.running) * self.ratio
        return need + min(self.s.max_new - head.made, 4096) < self.free - reserve

    def _decode(self) -> None:
        speed = max(1, self.s.decode_speed // max(4, len(self.running)))
        for r in list(self.running):
            made = min(speed, r.output - r.made)
            r.made += made
            r.held += made
            self.generated += made
        while self.used > self.s.capacity:
            self._preempt()
        self.ratio = max(0.1, self.ratio - 0.02)
        for r in [r for r in self.running if r.made >= r.output]:
            self.running.remove(r)
            self.finished += 1
            self.prompt_sizes.add(r.prompt)
            self.output_sizes.add(r.made)
            self.cached += r.held
            self._write(r.held)
        self._make_room()

    def _preempt(self) -> None:
        victim = (
            self.running.pop()
            if self.s.engine == "vllm"
            else self.running.pop(min(range(len(self.running)), key=lambda i: self.running[i].made))
        )
        victim.held = 0
        self.preempted += 1
        self.ratio = min(1.0, self.ratio + 0.3)
        self.waiting.insert(0 if self.s.engine == "vllm" else len(self.waiting), victim)

    def _make_room(self) -> None:
        over = max(0, self.used + self.cached - self.s.capacity)
        self.cached -= min(over, self.cached)
        self.evicted += over

    def _write(self, tokens: int) -> None:
        if self.s.host and (self.s.policy == "write_through" or self.random.random() < 0.1):
            self.host = min(self.s.host, self.host + tokens)
            self.written += tokens

    def loads(self) -> dict[str, object]:
        """SGLang's own load report, fresh; nothing for vLLM."""
        if self.s.engine == "vllm":
            return {}
        rank = {"dp_rank": 0, "timestamp": float(self.now), "num_running_reqs": len(self.running), "num_waiting_reqs": len(self.waiting),
                "num_used_tokens": self.used, "max_total_num_tokens": self.s.capacity,
                "max_running_requests": self.s.max_running}  # fmt: skip
        return {"loads": {"loads": [rank]}}

    def exposition(self) -> str:
        """The body of /metrics."""
        return "\n".join(self._vllm() if self.s.engine == "vllm" else self._sglang()) + "\n"

    def _vllm(self) -> list[str]:
        at = 'model_name="m",engine="0"'
        blocks = self.s.capacity // 16
        values = {
            "kv_cache_usage_perc": min(1.0, -(-self.used // 16) / blocks), "num_requests_running": len(self.running),
            "num_requests_waiting": len(self.waiting),
        }  # fmt: skip
        counters = {
            "num_preemptions": self.preempted, "prompt_tokens": self.prompts, "generation_tokens": self.generated,
            "prefix_cache_queries": self.prompts, "prefix_cache_hits": 0,
        }  # fmt: skip
        out = [f'vllm:cache_config_info{{block_size="16",num_gpu_blocks="{blocks + 1}",enable_prefix_caching="True",engine="0"}} 1']
        out += [f"vllm:{name}{{{at}}} {value}" for name, value in values.items()]
        out += [f"# TYPE vllm:{name} counter\nvllm:{name}_total{{{at}}} {value}" for name, value in counters.items()]
        out += [f'vllm:prompt_tokens_by_source_total{{{at},source="local_compute"}} {self.computed}']
        out += self.ttft.lines("vllm:time_to_first_token_seconds", at)
        return [
            *out,
            *self.prompt_sizes.lines("vllm:request_prompt_tokens", at),
            *self.output_sizes.lines("vllm:request_generation_tokens", at),
        ]

    def _sglang(self) -> list[str]:
        at = 'model_name="m",engine_type="unified",tp_rank="0",pp_rank="0",moe_ep_rank="0"'
        cache = 'cache_type="UnifiedRadixCache",tp_rank="0",pp_rank="0",dp_rank="0"'
        values = {
            "max_total_num_tokens": self.s.capacity, "kv_used_tokens": self.used, "kv_evictable_tokens": self.cached,
            "kv_available_tokens": self.s.capacity - self.used - self.cached, "num_running_reqs": len(self.running),
            "num_queue_reqs": len(self.waiting),
            "new_token_ratio": round(self.ratio, 3), "page_size": 1,
        }  # fmt: skip
        if self.s.host:
            values |= {"hicache_host_used_tokens": self.host, "hicache_host_total_tokens": self.s.host}
        out = [f"sglang:{name}{{{at}}} {value}" for name, value in values.items()]
        out += [
            f'sglang:realtime_tokens_total{{{at},mode="decode"}} {self.generated}',
            f'sglang:realtime_tokens_total{{{at},mode="prefill_compute"}} {self.computed}',
        ]
        out += [f"sglang:num_retracted_requests_total{{{at}}} {self.preempted}", f"sglang:evicted_tokens_total{{{cache}}} {self.evicted}"]
        if self.s.host:
            out += [
                f'sglang:hicache_backup_tokens_total{{{cache},pool="kv"}} {self.written}',
                f'sglang:load_back_tokens_total{{{cache},pool="kv"}} 0',
            ]
        out += self.ttft.lines("sglang:time_to_first_token_seconds", 'model_name="m",engine_type="unified"')
        return [*out, *self.prompt_sizes.lines("sglang:prompt_tokens_histogram", 'model_name="m",engine_type="unified"')]


def random_setup(seed: int) -> Setup:
    """A healthy, overloaded or slot-capped configuration; the load rises after a calm stretch."""
    r = random.Random(seed)
    engine = r.choice(("vllm", "sglang"))
    prompt, output = r.choice((128, 512, 2048)), r.choice((64, 256, 512))
    max_new = output * r.choice((2, 4))
    capacity = r.choice((8, 16, 32)) * (prompt + output) // 16 * 16
    fits = capacity / (prompt + output / 2)
    max_running = int(fits * r.choice((0.3, 4.0)))
    decode = r.choice((400, 1500))
    hold = output * 8 / decode + 1  # seconds a request runs, roughly
    ceiling = min(fits, max_running) / hold
    load = r.choice((0.3, 0.5, 2.0, 3.0))
    host = r.choice((0, capacity // 2, capacity * 4)) if engine == "sglang" else 0
    rates = ((120, ceiling * 0.3), (150, ceiling * load), (90, ceiling * 0.2))
    return Setup(
        engine,
        capacity,
        max(2, max_running),
        prompt,
        output,
        max_new,
        rates,
        40 * prompt,
        decode,
        host,
        r.choice(("write_through", "write_through_selective")),
    )
