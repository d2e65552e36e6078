"""A small model of vLLM's scheduler and block pool: what it holds, what it would publish and what it would count.

One KV group of full attention, requests with shared prompts, chunked prefill, prefix hits, preemption, aborts, cache resets. Every
block is known, so a claim about it can be checked.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from kvwatch.events.batch import GPU, Batch, Cleared, Event, Removed, Stored
from kvwatch.events.memory import PoolReading


@dataclass
class Request:
    """One request: its tokens so far, how many are computed, the blocks it holds."""

    tokens: list[int]
    wanted: int
    prompt: int
    blocks: list[int] = field(default_factory=list)
    computed: int = 0
    hit: int = 0
    ran: bool = False
    answered: bool = False

    @property
    def done(self) -> bool:
        """Whether it has all its tokens."""
        return len(self.tokens) - self.prompt >= self.wanted


@dataclass
class Engine:
    """An engine with ``blocks`` usable blocks of ``size`` tokens that runs at most ``slots`` requests, ``budget`` tokens a step.

    Each request gets room for ``ahead`` tokens more, as with speculative decoding.
    """

    blocks: int = 24
    size: int = 4
    slots: int = 4
    budget: int = 24
    seed: int = 0
    ahead: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.free = list(range(self.blocks))  # in the order of use
        self.hashed: dict[int, int] = {}
        self.users = [0] * self.blocks
        self.running: list[Request] = []
        self.waiting: list[Request] = []
        self.pending: list[Event] = []
        self.batches: list[Batch] = []
        self.prompt_tokens = self.generated = self.first = self.preempted = self.resets = self.unfinished = 0

    # ---- truth and what /metrics would say

    @property
    def available(self) -> int:
        """Free blocks without content."""
        return sum(b not in self.hashed for b in self.free)

    def reading(self, *, resets: bool = True) -> PoolReading:
        """What a scrape would say right now."""
        return PoolReading(
            blocks=self.blocks,
            used=self.blocks - len(self.free),
            running=len(self.running),
            waiting=len(self.waiting),
            block_size=self.size,
            plain=True,
            bare_first=True,
            tail_blocks=1 + -(-self.ahead // self.size),
            computed_tokens=self.prompt_tokens + self.generated,
            first_tokens=self.first,
            preemptions=self.preempted,
            generating_tokens=self.unfinished,
            resets=self.resets if resets else None,
        )

    # ---- what clients and operators do

    def submit(self, prompt: list[int], wanted: int) -> None:
        """Queue a request."""
        self.waiting.append(Request(list(prompt), wanted, len(prompt)))

    def abort(self, index: int) -> None:
        """A client goes away whose request has begun to answer or never ran; no counter tells."""
        everyone = [r for r in self.running + self.waiting if r.answered or not r.ran]
        if everyone:
            request = everyone[index % len(everyone)]
            (self.running if request in self.running else self.waiting).remove(request)
            self._release(request)

    def reset(self, *, force: bool) -> None:
        """POST /reset_prefix_cache."""
        self.resets += 1
        while force and self.running:
            self._preempt(self.running[-1])
        if len(self.free) == self.blocks:
            self.hashed.clear()
            self.pending.append(Cleared())

    def step(self) -> None:
        """One engine step: schedule, compute, sample, publish."""
        budget, preempted = self.budget, False
        scheduled: list[tuple[Request, int]] = []
        for request in list(self.running):
            amount = min(budget, len(request.tokens) - request.computed)
            while request in self.running and amount and not self._allocate(request, amount):
                self._preempt(self.running[-1])
                preempted = True
            if request in self.running and amount:
                scheduled.append((request, amount))
                budget -= amount
        while self.waiting and not preempted and budget and len(self.running) < self.slots:
            request = self.waiting[0]
            self._hit(request)
            amount = min(budget, len(request.tokens) - request.computed)
            if not self._allocate(request, amount):
                self._release(request)
                break
            request.ran = True
            self.running.append(self.waiting.pop(0))
            scheduled.append((request, amount))
            budget -= amount
        for request, amount in scheduled:
            if request in self.running:
                self._compute(request, amount)
        if self.pending:
            self.batches.append(Batch(float(len(self.batches)), tuple(self.pending)))
            self.pending = []

    # ---- inside

    def _hashes(self, request: Request, blocks: int) -> list[int]:
        return [hash(tuple(request.tokens[: (i + 1) * self.size])) for i in range(blocks)]

    def _hit(self, request: Request) -> None:
        """Take the cached blocks of a request that begins."""
        for h in self._hashes(request, (len(request.tokens) - 1) // self.size):
            block = next((b for b, known in self.hashed.items() if known == h), None)
            if block is None:
                break
            if self.users[block] == 0:
                self.free.remove(block)
            self.users[block] += 1
            request.blocks.append(block)
        request.computed = len(request.blocks) * self.size
        if not request.answered:
            request.hit = request.computed

    def _allocate(self, request: Request, amount: int) -> bool:
        """Give a request room for more tokens and cache the blocks they fill; False when there is not enough."""
        end = request.computed + amount
        need = -(-(end + self.ahead) // self.size) - len(request.blocks)
        if need > len(self.free):
            return False
        for _ in range(need):
            block = self.free.pop(0)
            if block in self.hashed:
                self.pending.append(Removed(GPU, 0, (self.hashed.pop(block),)))
            self.users[block] = 1
            request.blocks.append(block)
        fresh = [(b, h) for b, h in zip(request.blocks, self._hashes(request, end // self.size), strict=False) if b not in self.hashed]
        self.hashed.update(fresh)
        if fresh:
            self.pending.append(Stored(GPU, 0, tuple(h for _, h in fresh), self.size))
        return True

    def _compute(self, request: Request, amount: int) -> None:
        request.computed += amount
        if request.computed < len(request.tokens):
            return
        request.tokens.append(self.random.randrange(3))
        self.generated += 1
        self.unfinished += 1
        if not request.answered:
            request.answered = True
            self.first += 1
            self.prompt_tokens += request.prompt - request.hit
        if request.done:
            self.running.remove(request)
            self.unfinished -= len(request.tokens) - request.prompt
            self._release(request)

    def _preempt(self, request: Request) -> None:
        self.running.remove(request)
        self._release(request)
        self.preempted += 1
        self.waiting.insert(0, request)

    def _release(self, request: Request) -> None:
        """Give the blocks back, last ones first: bare ones to the front, cached ones to the end."""
        freed = []
        for block in reversed(request.blocks):
            self.users[block] -= 1
            if self.users[block] == 0:
                freed.append(block)
        self.free = [b for b in freed if b not in self.hashed] + self.free + [b for b in freed if b in self.hashed]
        request.blocks, request.computed = [], 0
