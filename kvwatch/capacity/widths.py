"""How many bytes one number of the KV cache takes."""

from __future__ import annotations

from fractions import Fraction

from kvwatch.capacity.fields import Fields
from kvwatch.capacity.layers import UnknownShape

HALF, FLOAT = Fraction(2), Fraction(4)
BYTES: dict[str, Fraction] = {
    "bf16": HALF,
    "bfloat16": HALF,
    "fp16": HALF,
    "float16": HALF,
    "half": HALF,
    "fp32": FLOAT,
    "float32": FLOAT,
    "int8": Fraction(1),
}
FOUR_BIT = ("fp4", "nvfp4", "fp4_e2m1")
FOUR_BIT_BYTES = Fraction(1, 2) + Fraction(1, 16)
"""Half a byte, and one byte of scale for every 16 numbers."""
MIXED = "fp8_ds_mla"
EIGHT_BIT = ("fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "float8_e4m3fn", "float8_e5m2")
"""8-bit floating-point formats with a scale per tensor, which costs a token nothing. Others keep scales beside each head."""


def width_of(dtype: str) -> Fraction:
    """Bytes of one number. Raises UnknownShape for a type that is not known."""
    name = dtype.lower().removeprefix("torch.")
    if name in BYTES:
        return BYTES[name]
    if name == MIXED:
        raise UnknownShape("fp8_ds_mla keeps parts of a latent at different widths: give --model")
    if name in FOUR_BIT:
        return FOUR_BIT_BYTES
    if name in EIGHT_BIT:
        return Fraction(1)
    msg = f"'{dtype}' is no KV data type: write bf16, fp16, fp32, fp8, int8 or nvfp4"
    raise UnknownShape(msg)


def width_in(fields: Fields, dtype: str) -> tuple[str, Fraction]:
    """Name and bytes of the type an engine would use for this model; ``dtype`` is what its flag says, "auto" for nothing."""
    sparse = fields.has("index_head_dim")
    if dtype != "auto":
        if (sparse and dtype.lower() in EIGHT_BIT) or dtype == MIXED:
            return MIXED, _mixed_latent(fields)
        return dtype, width_of(dtype)
    if sparse:
        raise UnknownShape("engines differ in how they keep the latent of a model with a sparse index: say --dtype bf16 or fp8")
    quantised = fields.inner("quantization_config")
    if quantised.has("kv_cache_scheme", "kv_cache_quant_algo") or quantised.inner("quantization").has("kv_cache_quant_algo"):
        raise UnknownShape("the configuration brings its own KV cache quantisation, which engines follow or not: say --dtype fp8 or bf16")
    told = fields.text("torch_dtype") or fields.text("dtype")
    if told is None:  # engines look into the weights, and load whatever is there in 16 bits or, from 32, in half precision
        return "16-bit", HALF
    if width_of(told) == FLOAT:  # engines load models of 32 bits in half precision unless told not to
        return "float16", HALF
    return told.removeprefix("torch."), width_of(told)


def _mixed_latent(fields: Fields) -> Fraction:
    """The latent in 8 bits with a 4-byte scale per 128, its rotary part in 16 bits (vllm/v1/attention/backends/mla)."""
    latent, rotary = fields.need("kv_lora_rank"), fields.need("qk_rope_head_dim")
    return Fraction(latent + latent // 128 * 4 + 2 * rotary, latent + rotary)
