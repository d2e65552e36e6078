"""A model's ``config.json`` as layers: how many KV heads of what width each keeps, and for how many tokens."""

from __future__ import annotations

from collections.abc import Mapping

from kvwatch.capacity.fields import Fields
from kvwatch.capacity.kinds import Kind, layer_kinds
from kvwatch.capacity.layers import Layer, UnknownShape
from kvwatch.capacity.states import state_bytes

INDEX_BLOCK = 128
"""Numbers of a sparse-attention index that share one 4-byte scale (vllm/model_executor/models/deepseek_v2.py)."""

REFUSED = {
    "compress_ratios": "keeps compressed keys and values at ratios no engine documents",
    "per_layer_config": "gives each layer its own shape",
    "use_cla": "shares keys and values between layers, which engines do or do not exploit",
}
"""Keys that make the answer depend on what is not in the file."""


def layers_of(fields: Fields) -> tuple[Layer, ...]:
    """Every layer of the language model, in order. Raises UnknownShape for whatever the file leaves open."""
    for key, why in REFUSED.items():
        if fields.has(key):
            msg = f"the configuration has {key}: the model {why}"
            raise UnknownShape(msg)
    if fields.flag("is_encoder_decoder"):
        raise UnknownShape("the model is an encoder-decoder, which keeps keys and values of its input apart")
    blocks = fields.sequence("block_configs")
    if blocks is not None:
        return tuple(_searched(fields, block) for block in blocks)
    kinds = layer_kinds(fields)
    return tuple(_layer(fields, index, kind, mixed=len(set(kinds) & {Kind.FULL, Kind.SLIDING}) > 1) for index, kind in enumerate(kinds))


def is_latent(fields: Fields) -> bool:
    """Whether the model keeps one latent per token and layer instead of heads (MLA)."""
    if not fields.has("kv_lora_rank"):
        if fields.has("qk_nope_head_dim"):
            raise UnknownShape("the configuration splits its key heads (qk_nope_head_dim) and does not say kv_lora_rank")
        return False
    if fields.model_type == "minicpm3":
        raise UnknownShape("engines differ in what they keep of minicpm3: say --mla-latent, or --kv-heads and --head-dim, with --layers")
    return True


def _layer(fields: Fields, index: int, kind: Kind, *, mixed: bool) -> Layer:
    if kind is Kind.NONE:
        return Layer()
    if kind is Kind.CROSS:  # keeps the tokens of an image, whose number is not in the file
        return Layer(state_bytes=None)
    if kind is Kind.STATE:
        return Layer(state_bytes=state_bytes(fields))
    state = state_bytes(fields) if kind is Kind.BOTH else 0
    window = fields.need("sliding_window", "sliding_window_size") if kind is Kind.SLIDING else None
    if kind is Kind.CHUNKED:
        window = fields.need("attention_chunk_size")
    if is_latent(fields):
        latent = fields.need("kv_lora_rank") + fields.need("qk_rope_head_dim")
        return Layer(1, latent, window, _index_bytes(fields), state)
    heads, key, value = _heads(fields, index, kind, mixed=mixed)
    return Layer(heads, key + value, window, state_bytes=state)


def _index_bytes(fields: Fields) -> int:
    width = fields.number("index_head_dim")
    return 0 if width is None else width + width // INDEX_BLOCK * 4


def _heads(fields: Fields, index: int, kind: Kind, *, mixed: bool) -> tuple[int, int, int]:
    """KV heads, key width and value width of one layer."""
    heads, key = kv_heads(fields, index), head_dim(fields)
    value = fields.number("v_head_dim") if fields.has("head_dim") else None
    if kind is Kind.SLIDING:
        own_heads, own_key, own_value = (fields.number(f"swa_{n}") for n in ("num_key_value_heads", "head_dim", "v_head_dim"))
        heads, key, value = own_heads or heads, own_key or key, own_value or own_key or value
    elif mixed and fields.has("global_head_dim"):  # Gemma 4: full layers have wider and, where key and value are one, fewer heads
        key = fields.need("global_head_dim")
        heads = (fields.number("num_global_key_value_heads") if fields.flag("attention_k_eq_v") else None) or heads
    return heads, key, value or key


def kv_heads(fields: Fields, index: int) -> int:
    """KV heads of a layer; as many as query heads where nothing else is said."""
    for name in ("num_key_value_heads_per_layer", "num_kv_heads", "num_key_value_heads"):
        listed = fields.sequence(name)
        if listed is not None:
            return Fields({name: listed[index] if index < len(listed) else None}).need(name)
    if fields.flag("multi_query_attention"):
        return fields.need("multi_query_group_num")
    if fields.model_type in ("falcon", "RefinedWeb", "RefinedWebModel"):
        if fields.flag("new_decoder_architecture"):
            return fields.need("num_kv_heads", "n_head_kv")
        return 1 if fields.flag("multi_query") else _query_heads(fields)
    if fields.flag("multi_query"):
        return 1
    told = fields.number("num_key_value_heads", "num_kv_heads", "n_head_kv", "n_kv_heads", "num_query_groups", "num_attention_groups")
    return told or fields.inner("attn_config").number("kv_n_heads") or _query_heads(fields)


def _query_heads(fields: Fields) -> int:
    return fields.need("num_attention_heads", "n_head", "n_heads")


def head_dim(fields: Fields) -> int:
    """Width of one head: as said, else the hidden width divided by the query heads."""
    told = fields.number("head_dim", "kv_channels", "attention_head_dim")
    if told is not None:
        return told
    hidden, heads = fields.need("attention_hidden_size", "hidden_size", "n_embd", "n_embed", "d_model"), _query_heads(fields)
    if hidden % heads:
        msg = f"the configuration does not say head_dim, and hidden_size {hidden} does not divide by {heads} heads"
        raise UnknownShape(msg)
    return hidden // heads


def _searched(fields: Fields, block: object) -> Layer:
    """One layer of a model whose blocks were found by search (DeciLM, Nemotron): attention may be missing or replaced."""
    attention = Fields(block if isinstance(block, Mapping) else {}).inner("attention")
    if attention.flag("no_op") or attention.flag("replace_with_linear"):
        return Layer()
    heads, group = attention.number("num_key_value_heads"), attention.number("n_heads_in_group")
    if heads is None and group is None:
        raise UnknownShape("the configuration's block_configs do not say n_heads_in_group of a layer")
    width = head_dim(fields)
    return Layer(heads or _query_heads(fields) // (group or 1), 2 * width, attention.number("window_length", "sliding_window"))
