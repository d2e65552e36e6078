"""One message of a vLLM event publisher into values: frames -> ``Message`` -> ``Batch``.

The order of a stream is known from the frames alone, so a message stays undecoded until its turn comes (``sequence``). Events are
msgpack maps with a ``type`` since vllm/distributed/kv_events.py stopped using arrays; releases before send tagged arrays. Both are
read. Fields nobody needs (token ids, extra keys) are skipped without being built.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from kvwatch.events.batch import Batch, Cleared, Event, Removed, Stored
from kvwatch.events.sequence import Message

SEQUENCE_BYTES = 8
END = -1
"""The sequence number that closes an answer of the replay socket."""
KNOWN = ("BlockStored", "BlockRemoved", "AllBlocksCleared")
LOW_64_BITS = (1 << 64) - 1


class GarbledBatch(ValueError):
    """A message that no release of vLLM can have meant; what it should have said is lost."""


class _Envelope(msgspec.Struct, array_like=True, gc=False):
    ts: float
    events: list[msgspec.Raw]
    data_parallel_rank: msgspec.Raw = msgspec.Raw()


class _Stored(msgspec.Struct, tag="BlockStored", tag_field="type", gc=False):
    block_hashes: list[int | bytes]
    token_ids: msgspec.Raw = msgspec.Raw()
    block_size: int = 0
    medium: str | None = None
    group_idx: int | None = None
    kv_cache_spec_sliding_window: int | None = None


class _Removed(msgspec.Struct, tag="BlockRemoved", tag_field="type", gc=False):
    block_hashes: list[int | bytes]
    medium: str | None = None
    group_idx: int | None = None


class _Cleared(msgspec.Struct, tag="AllBlocksCleared", tag_field="type", gc=False):
    pass


class _StoredArray(msgspec.Struct, array_like=True, tag="BlockStored", gc=False):
    block_hashes: list[int | bytes]
    parent_block_hash: msgspec.Raw = msgspec.Raw()
    token_ids: msgspec.Raw = msgspec.Raw()
    block_size: int = 0
    lora_id: msgspec.Raw = msgspec.Raw()
    medium: str | None = None
    lora_name: msgspec.Raw = msgspec.Raw()
    extra_keys: msgspec.Raw = msgspec.Raw()
    group_idx: int | None = None
    kv_cache_spec_kind: msgspec.Raw = msgspec.Raw()
    kv_cache_spec_sliding_window: int | None = None


class _RemovedArray(msgspec.Struct, array_like=True, tag="BlockRemoved", gc=False):
    block_hashes: list[int | bytes]
    medium: str | None = None
    group_idx: int | None = None


class _ClearedArray(msgspec.Struct, array_like=True, tag="AllBlocksCleared", gc=False):
    pass


class _Tagged(msgspec.Struct):
    type: str


_ENVELOPES = msgspec.msgpack.Decoder(_Envelope)
_MAPS = msgspec.msgpack.Decoder(_Stored | _Removed | _Cleared)
_ARRAYS = msgspec.msgpack.Decoder(_StoredArray | _RemovedArray | _ClearedArray)
_TAGS = msgspec.msgpack.Decoder(_Tagged)
_LISTS = msgspec.msgpack.Decoder(list[msgspec.Raw])
_NAMES = msgspec.msgpack.Decoder(str)


def parse(frames: Sequence[bytes], topic: str | None = None) -> Message:
    """Find sequence number and payload in the frames of either socket; ``topic`` None accepts any.

    The publisher sends [topic, number, payload], the replay socket the same behind an empty frame, and closes its answer with a
    message numbered END. Raises GarbledBatch.
    """
    if len(frames) == 4 and not frames[0]:  # noqa: PLR2004  the replay socket's delimiter
        frames = frames[1:]
    if len(frames) != 3 or len(frames[1]) != SEQUENCE_BYTES:  # noqa: PLR2004  topic, number, payload
        raise GarbledBatch("these frames are no event message")
    number = int.from_bytes(frames[1], "big", signed=True)
    if number == END:
        return Message(END, b"")
    if number < 0:
        raise GarbledBatch("a negative sequence number")
    if topic is not None and frames[0] != topic.encode():
        raise GarbledBatch("another topic")
    return Message(number, frames[2])


def decode(payload: bytes) -> Batch:
    """Read one payload; events of unknown types are counted, unknown fields skipped. Raises GarbledBatch and nothing else."""
    try:
        envelope = _ENVELOPES.decode(payload)
        if not math.isfinite(envelope.ts):
            raise GarbledBatch("the time is not a number")
        events = [_event(bytes(raw)) for raw in envelope.events]
    except (msgspec.MsgspecError, RecursionError) as error:
        raise GarbledBatch(str(error)) from error
    known = tuple(e for e in events if e is not None)
    return Batch(envelope.ts, known, len(events) - len(known), _rank(bytes(envelope.data_parallel_rank)))


def _rank(raw: bytes) -> int | None:
    """A rank, None for anything else."""
    try:
        rank = msgspec.msgpack.decode(raw) if raw else None
    except (msgspec.MsgspecError, RecursionError):
        return None
    return rank if isinstance(rank, int) and not isinstance(rank, bool) and rank >= 0 else None


def _event(raw: bytes) -> Event | None:
    """One event of either encoding, None for a type this version does not know."""
    is_map = _is_map(raw)
    try:
        found = (_MAPS if is_map else _ARRAYS).decode(raw)
    except msgspec.ValidationError:
        if _tag(raw, is_map=is_map) in KNOWN:
            raise
        return None
    if isinstance(found, _Stored | _StoredArray):
        window = found.kv_cache_spec_sliding_window
        return Stored(
            found.medium,
            _group(found.group_idx),
            _hashes(found.block_hashes),
            found.block_size,
            window,
            0 if window is None else _length(bytes(found.token_ids)),
        )
    if isinstance(found, _Removed | _RemovedArray):
        return Removed(found.medium, _group(found.group_idx), _hashes(found.block_hashes))
    return Cleared()


def _is_map(raw: bytes) -> bool:
    """Whether a msgpack value is a map: fixmap, map 16 or map 32."""
    return raw[0] & 0xF0 == 0x80 or raw[0] in (0xDE, 0xDF)  # noqa: PLR2004  the format's type bytes


def _tag(raw: bytes, *, is_map: bool) -> str:
    if is_map:
        return _TAGS.decode(raw).type
    parts = _LISTS.decode(raw)
    if not parts:
        raise GarbledBatch("an event without a type")
    return _NAMES.decode(parts[0])


def _length(raw: bytes) -> int:
    """Items of a msgpack array: fixarray, array 16 or array 32; 0 for anything else."""
    if not raw:
        return 0
    if raw[0] & 0xF0 == 0x90:  # noqa: PLR2004  the format's type bytes
        return raw[0] & 0x0F
    return int.from_bytes(raw[1 : {0xDC: 3, 0xDD: 5}.get(raw[0], 1)], "big")


def _group(index: int | None) -> int:
    return 0 if index is None else index


def _hashes(found: list[int | bytes]) -> tuple[int, ...]:
    """Hashes as integers: vLLM sends the low 64 bits of a digest or, when told so, the whole digest (``maybe_convert_block_hash``)."""
    return tuple(h & LOW_64_BITS if isinstance(h, int) else int.from_bytes(h[-8:], "big") for h in found)
