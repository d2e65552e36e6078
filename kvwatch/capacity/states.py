"""Bytes that layers without attention keep per sequence: the convolution's last inputs and the recurrent state.

The shapes are those of vllm/model_executor/layers/mamba/mamba_utils.py. Engines keep the recurrent state in 32 bits unless the model or a
flag says otherwise, so where nothing is said this is the most it takes.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvwatch.capacity.fields import Fields

CONVOLUTION_BYTES = 2
STATE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}


@dataclass(frozen=True, slots=True)
class StateValues:
    """Numbers in the two parts of one layer's state."""

    convolution: int
    recurrent: int


def state_bytes(fields: Fields) -> int | None:
    """Bytes of one state layer of one sequence over all ranks; None for a kind whose shape is not known here."""
    values = _values(fields)
    if values is None:
        return None
    dtype = fields.text("mamba_ssm_cache_dtype") or fields.text("mamba_ssm_dtype") or "float32"
    width = STATE_BYTES.get(dtype.removeprefix("torch."))
    return None if width is None else values.convolution * CONVOLUTION_BYTES + values.recurrent * width


def _values(fields: Fields) -> StateValues | None:
    if fields.has("linear_num_value_heads"):
        return _delta_net(fields)
    if fields.has("linear_attn_config"):
        return _delta_attention(fields.inner("linear_attn_config"))
    if fields.has("conv_L_cache"):
        return StateValues((fields.need("conv_L_cache") - 1) * fields.need("conv_dim", "hidden_size"), 0)
    if fields.has("attn_type_list"):  # lightning attention: one square matrix per head
        return StateValues(0, fields.need("num_attention_heads") * fields.need("head_dim") ** 2)
    groups = fields.number("mamba_n_groups", "n_groups", "mamba_ngroups")
    return _mamba1(fields) if groups is None else _mamba2(fields, groups)


def _delta_net(fields: Fields) -> StateValues:
    key_width, value_heads = fields.need("linear_key_head_dim"), fields.need("linear_num_value_heads")
    value_width = fields.need("linear_value_head_dim")
    channels = 2 * key_width * fields.need("linear_num_key_heads") + value_width * value_heads
    return StateValues((fields.need("linear_conv_kernel_dim") - 1) * channels, value_heads * key_width * value_width)


def _delta_attention(fields: Fields) -> StateValues:
    heads, width = fields.need("num_heads"), fields.need("head_dim")
    return StateValues((fields.need("short_conv_kernel_size") - 1) * 3 * heads * width, heads * width * width)


def _mamba1(fields: Fields) -> StateValues | None:
    kernel, state, expand = (fields.number(name) for name in ("mamba_d_conv", "mamba_d_state", "mamba_expand"))
    if kernel is None or state is None or expand is None:
        return None
    channels = expand * fields.need("hidden_size")
    return StateValues((kernel - 1) * channels, channels * state)


def _mamba2(fields: Fields, groups: int) -> StateValues | None:
    heads = fields.number("mamba_n_heads", "mamba_num_heads", "n_mamba_heads")
    state, kernel = fields.number("mamba_d_state", "ssm_state_size"), fields.number("mamba_d_conv", "conv_kernel")
    if heads is None or state is None or kernel is None:
        return None
    if fields.raw.get("mamba_d_head") == "auto":
        channels = fields.need("mamba_expand") * fields.need("hidden_size")
    else:
        channels = heads * fields.need("mamba_d_head", "mamba_head_dim", "mamba_headdim")
    return StateValues((kernel - 1) * (channels + 2 * groups * state), channels * state)
