"""What each layer of a model is: full attention, a window of it, a state, or nothing.

Families say it in a dozen ways: a list, a period, a pattern string, or only in the code of the model. What is written here is what
transformers and the engines do; a family that says nothing and is not known here is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from kvwatch.capacity.fields import LAYERS, Fields
from kvwatch.capacity.layers import UnknownShape


class Kind(Enum):
    """What a layer keeps: all tokens, the last ones, those of a chunk, a state, tokens and a state, an image's tokens, or nothing."""

    FULL = "full"
    SLIDING = "sliding"
    CHUNKED = "chunked"
    STATE = "state"
    BOTH = "both"
    CROSS = "cross"
    NONE = "none"


NAMES: dict[object, Kind] = {
    "full_attention": Kind.FULL,
    "attention": Kind.FULL,
    "global": Kind.FULL,
    "sliding_attention": Kind.SLIDING,
    "sliding_window_attention": Kind.SLIDING,
    "local": Kind.SLIDING,
    "chunked_attention": Kind.CHUNKED,
    "linear_attention": Kind.STATE,
    "mamba": Kind.STATE,
    "mamba2": Kind.STATE,
    "conv": Kind.STATE,
    "hybrid": Kind.BOTH,
    "mlp": Kind.NONE,
    "moe": Kind.NONE,
}
"""Words of ``layer_types`` and ``layers_block_type``."""
LETTERS: dict[object, Kind] = {"M": Kind.STATE, "*": Kind.FULL, "-": Kind.NONE, "E": Kind.NONE}
"""Letters of ``hybrid_override_pattern``: Mamba, attention, MLP, experts."""
FLAGS: dict[object, Kind] = {1: Kind.SLIDING, 0: Kind.FULL}
"""Numbers of ``hybrid_layer_pattern``."""
LINEAR_FLAGS: dict[object, Kind] = {1: Kind.FULL, 0: Kind.STATE}
"""Numbers of ``attn_type_list``."""

FULL_EVERY = {"gemma2": 2, "gpt_oss": 2, "cohere2": 4, "olmo3": 4, "exaone4": 4, "gemma3n_text": 5, "gemma3": 6, "gemma3_text": 6}
"""Families whose every so many-th layer is a full one and the others slide, where the file does not say so."""
ALL_SLIDE = ("mistral", "mixtral", "starcoder2", "phi3", "phimoe")
"""Families whose layers all slide when a window is set."""
STATES_ONLY = ("mamba", "mamba2", "falcon_mamba", "rwkv", "rwkv5", "rwkv6", "rwkv7")
UNREAD_HYBRIDS = (
    "mamba_d_state",
    "ssm_state_size",
    "ssm_cfg",
    "linear_num_value_heads",
    "layer_group_size",
    "block_types",
    "attention_types",
)
"""Keys that tell of layers without full attention, for when no key says which they are."""


def layer_kinds(fields: Fields) -> tuple[Kind, ...]:
    """One kind per layer, in order. Raises UnknownShape when the configuration leaves it open."""
    kinds = _told(fields) or _attention_only(fields)
    count = fields.number(*LAYERS)
    if count is not None and len(kinds) < count:
        msg = f"the configuration has {count} layers and says of {len(kinds)} what they are"
        raise UnknownShape(msg)
    shared = fields.number("num_kv_shared_layers")
    if shared is not None:  # the last layers read the keys and values of earlier ones
        kinds = (*kinds[: len(kinds) - shared], *(Kind.NONE for _ in kinds[len(kinds) - shared :]))
    crossing = fields.sequence("cross_attention_layers") or ()
    return tuple(Kind.CROSS if index in crossing else kind for index, kind in enumerate(kinds))


def _told(fields: Fields) -> tuple[Kind, ...] | None:
    """The kinds, where a key says them layer by layer or by a period."""
    for key, names in (
        ("layer_types", NAMES),
        ("layers_block_type", NAMES),
        ("hybrid_layer_pattern", FLAGS),
        ("attn_type_list", LINEAR_FLAGS),
    ):
        listed = fields.sequence(key)
        if listed is not None:
            return tuple(_named(key, word, names) for word in listed)
    pattern = fields.text("hybrid_override_pattern")
    if pattern is not None:
        return tuple(_named("hybrid_override_pattern", letter, LETTERS) for letter in pattern)
    count = fields.need(*LAYERS)
    if fields.model_type == "falcon_h1":
        return (Kind.BOTH,) * count
    if fields.model_type in STATES_ONLY:
        return (Kind.STATE,) * count
    is_full = _attention_layers(fields)
    return None if is_full is None else tuple(Kind.FULL if is_full(index) else Kind.STATE for index in range(count))


def _named(key: str, word: object, names: dict[object, Kind]) -> Kind:
    kind = names.get(word) if isinstance(word, str | int) else None
    if kind is None:
        msg = f"the configuration calls a layer {word!r} in {key}, and what that keeps per token is not known"
        raise UnknownShape(msg)
    return kind


def _attention_layers(fields: Fields) -> Callable[[int], bool] | None:
    """Which layers attend, in families that mix them with states; None for the others."""
    period = fields.number("attn_layer_period")
    if period is not None:
        offset = fields.number("attn_layer_offset") or 0
        return lambda index: index % period == offset
    listed = fields.sequence("attn_layer_indices") or fields.sequence("full_attn_idxs")
    if listed is not None:
        return lambda index: index in listed
    counted_from_1 = fields.inner("linear_attn_config").sequence("full_attn_layers")
    if counted_from_1 is not None:
        return lambda index: index + 1 in counted_from_1
    every = fields.number("full_attention_interval")
    if every is not None:
        return lambda index: (index + 1) % every == 0
    return None


def _attention_only(fields: Fields) -> tuple[Kind, ...]:
    """The kinds of a model in which every layer attends to all tokens, to a window or to a chunk."""
    unread = next((key for key in UNREAD_HYBRIDS if fields.has(key)), None)
    if unread is not None:
        msg = f"the configuration has {unread} and does not say which layers are attention (layer_types)"
        raise UnknownShape(msg)
    count = fields.need(*LAYERS)
    if fields.model_type.startswith("longcat_flash"):
        count *= 2  # each of its layers has two attentions
    if fields.has("attention_chunk_size"):
        return _chunked(fields, count)
    return _sliding(fields, count)


def _chunked(fields: Fields, count: int) -> tuple[Kind, ...]:
    """Llama 4: layers with rotary positions attend within a chunk, those without to everything."""
    rotary = fields.sequence("no_rope_layers")
    if rotary is not None:
        return tuple(Kind.CHUNKED if flag else Kind.FULL for flag in rotary)
    every = fields.number("no_rope_layer_interval") or 4
    return tuple(Kind.FULL if (index + 1) % every == 0 else Kind.CHUNKED for index in range(count))


def _sliding(fields: Fields, count: int) -> tuple[Kind, ...]:
    if fields.number("sliding_window", "sliding_window_size") is None or fields.raw.get("use_sliding_window") is False:
        return (Kind.FULL,) * count
    if fields.model_type.startswith("qwen"):
        if not fields.flag("use_sliding_window"):  # off unless said, whatever the window
            return (Kind.FULL,) * count
        first = fields.need("max_window_layers")
        return tuple(Kind.SLIDING if index >= first else Kind.FULL for index in range(count))
    pattern = fields.text("sliding_window_pattern")
    if pattern:
        letters: dict[object, Kind] = {"L": Kind.SLIDING, "G": Kind.FULL}
        return tuple(_named("sliding_window_pattern", pattern[index % len(pattern)], letters) for index in range(count))
    every = fields.number("sliding_window_pattern", "_sliding_window_pattern") or FULL_EVERY.get(fields.model_type)
    if every is not None:
        return tuple(Kind.FULL if (index + 1) % every == 0 else Kind.SLIDING for index in range(count))
    if fields.model_type in ALL_SLIDE or fields.flag("use_sliding_window"):
        return (Kind.SLIDING,) * count
    msg = (
        f"the configuration sets a sliding window and does not say which layers of {fields.model_type or 'this model'} use it (layer_types)"
    )
    raise UnknownShape(msg)
