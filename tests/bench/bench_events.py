"""What KV events cost: messages through decoding and counting, and bytes for each block remembered."""

from __future__ import annotations

import struct
import time
import tracemalloc

import msgspec

from kvwatch.events.track import Track

MESSAGES = 20_000
BLOCKS = 100_000


def _frames(number: int, hashes: list[int]) -> list[bytes]:
    event = {"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": None, "token_ids": [], "block_size": 16, "medium": "GPU"}
    return [b"kv", struct.pack(">q", number), msgspec.msgpack.encode([0.0, [event], 0])]


def run() -> list[tuple[str, str]]:
    """Messages of four blocks a second on one core, and memory of one block."""
    messages = [_frames(n, [(n * 4 + i) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF for i in range(4)]) for n in range(MESSAGES)]
    track = Track()
    begun = time.perf_counter()
    for frames in messages:
        track.live(frames, 0.0)
    seconds = time.perf_counter() - begun
    tracemalloc.start()
    track = Track()
    track.live(_frames(0, [i * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF for i in range(BLOCKS)]), 0.0)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return [
        ("KV events: messages a second on one core", f"{MESSAGES / seconds:,.0f}"),
        ("KV events: share of a core at 10,000 messages/s", f"{10_000 * seconds / MESSAGES:.0%}"),
        ("KV events: bytes for each cached block", f"{size / BLOCKS:.0f}"),
    ]
