"""One capacity account: a model on so many GPUs, what it holds, what would raise that, and how it is printed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from kvwatch.capacity import KvShape, UnknownShape
from kvwatch.wording import number


@dataclass(frozen=True, slots=True)
class Account:
    """A model on GPUs: ``gpu_bytes`` for KV on each, None when nobody said; ``lengths`` of sequences in tokens.

    ``told_in_tokens`` says that the memory was given as the tokens it holds.
    """

    shape: KvShape
    tp: int
    pp: int
    gpu_bytes: int | None
    lengths: tuple[int, ...]
    concurrency: int | None
    told_in_tokens: bool = False

    @property
    def ceilings(self) -> tuple[int, ...]:
        """Most sequences of each length at once; () without a pool."""
        if self.gpu_bytes is None:
            return ()
        return tuple(self.shape.sequences(self.gpu_bytes, length, self.tp, self.pp) for length in self.lengths)

    @property
    def levers(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """What would raise the ceilings, and to what, with the same memory for KV on each GPU."""
        if self.gpu_bytes is None:
            return ()
        changes: list[tuple[str, Account]] = []
        if self.shape.width >= Fraction(2) and not any(layer.index_bytes for layer in self.shape.layers):
            changes.append(("8-bit KV (--kv-cache-dtype)", replace(self, shape=replace(self.shape, dtype="fp8", width=Fraction(1)))))
        if self.tp < self.shape.kv_heads:
            changes.append((f"twice the tensor parallelism ({2 * self.tp * self.pp} GPUs)", replace(self, tp=2 * self.tp)))
        if 2 * self.pp <= len(self.shape.layers):
            changes.append((f"twice the pipeline stages ({2 * self.tp * self.pp} GPUs)", replace(self, pp=2 * self.pp)))
        tenth = self.gpu_bytes + self.gpu_bytes // 10
        changes.append((f"a tenth more KV memory ({number(tenth, 'bytes')} per GPU)", replace(self, gpu_bytes=tenth)))
        return tuple((what, changed.ceilings) for what, changed in changes if changed.possible)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the figures rest on, where that is not obvious."""
        notes = []
        if self.tp >= self.shape.kv_heads:
            notes.append("more tensor parallelism buys no room: each further GPU repeats KV heads that another one holds")
        if any(layer.window is not None for layer in self.shape.layers):
            notes.append("some layers keep a window only: a long sequence takes less than its length times the bytes of a token")
        state = self.shape.state_bytes
        if state is None:
            notes.append("some layers keep a state of unknown size per sequence: it is left out, so the ceilings are upper bounds")
        elif state:
            notes.append(
                f"each sequence also keeps {number(state, 'bytes')} of state (recurrent part in 32 bits unless the model says otherwise)"
            )
        if self.told_in_tokens and any(layer.window is not None or layer.state_bytes != 0 for layer in self.shape.layers):
            notes.append("engines differ in how they count the tokens of such a pool: --kv-memory is certain, --pool-tokens an estimate")
        return tuple(notes)

    @property
    def possible(self) -> bool:
        """Whether engines would split the model so."""
        try:
            self.shape.stages(self.tp, self.pp)
        except UnknownShape:
            return False
        return True


def as_json(account: Account) -> dict[str, object]:
    """The account as a JSON object; bytes and tokens, null for what nobody said."""
    shape, tp, pp = account.shape, account.tp, account.pp
    ceilings = account.ceilings or (None,) * len(account.lengths)
    return {
        "dtype": shape.dtype,
        "layers": len(shape.layers),
        "kv_heads": shape.kv_heads,
        "tp": tp,
        "pp": pp,
        "bytes_per_token": shape.bytes_per_token,
        "gpu_bytes_per_token": shape.gpu_bytes_per_token(tp, pp),
        "total_bytes_per_token": shape.total_bytes_per_token(tp, pp),
        "state_bytes_per_sequence": shape.state_bytes,
        "gpu_kv_bytes": account.gpu_bytes,
        "pool_tokens": None if account.gpu_bytes is None else shape.pool_tokens(account.gpu_bytes, tp, pp),
        "sequences": [
            {
                "tokens": length,
                "bytes": shape.sequence_bytes(length),
                "ceiling": ceiling,
                "gpu_kv_bytes_needed": None if account.concurrency is None else shape.gpu_bytes_for(account.concurrency, length, tp, pp),
            }
            for length, ceiling in zip(account.lengths, ceilings, strict=True)
        ],
        "concurrency": account.concurrency,
        "raise": [{"change": what, "ceilings": list(raised)} for what, raised in account.levers],
        "notes": list(account.notes),
    }


def as_text(account: Account) -> str:
    """The account for people."""
    shape, tp, pp = account.shape, account.tp, account.pp
    per_gpu, total = shape.gpu_bytes_per_token(tp, pp), shape.total_bytes_per_token(tp, pp)
    one = shape.bytes_per_token
    lines = [f"{number(one, 'bytes')} ({one:,} B) of KV per token in {shape.dtype}, {len(shape.layers)} layers"]
    if tp * pp > 1:
        lines.append(f"{number(per_gpu, 'bytes')} of it on each of {tp * pp} GPUs, {number(total, 'bytes')} on all together")
    if account.gpu_bytes is not None:
        tokens = shape.pool_tokens(account.gpu_bytes, tp, pp)
        lines.append(f"{number(account.gpu_bytes, 'bytes')} for KV on each GPU: a pool of {tokens:,} tokens")
    lines += ["", *_table(account)]
    lines += ["", *account.notes] if account.notes else []
    return "\n".join(lines) + "\n"


def _table(account: Account) -> list[str]:
    """One column per length: bytes of a sequence, the ceiling, what is needed for the concurrency, and each lever."""
    rows = [
        ("sequence, tokens", [f"{length:,}" for length in account.lengths]),
        ("KV of one sequence", [number(account.shape.sequence_bytes(length), "bytes") for length in account.lengths]),
    ]
    if account.ceilings:
        rows.append(("sequences at once, at most", [f"{most:,}" for most in account.ceilings]))
    if account.concurrency is not None:
        needed = (account.shape.gpu_bytes_for(account.concurrency, length, account.tp, account.pp) for length in account.lengths)
        rows.append((f"KV memory per GPU for {account.concurrency:,} at once", [number(n, "bytes") for n in needed]))
    rows += [(f"  with {what}", [f"{most:,}" for most in raised]) for what, raised in account.levers]
    first = max(len(name) for name, _ in rows)
    width = max(len(cell) for _, cells in rows for cell in cells) + 2
    return [name.ljust(first) + "".join(cell.rjust(width) for cell in cells) for name, cells in rows]
