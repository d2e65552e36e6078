"""The capacity account: bytes per token of every family, what a GPU holds of it, and how many sequences fit."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwatch.capacity import KvShape, UnknownShape

GIB = 2**30
LLAMA_70B = {
    "model_type": "llama",
    "num_hidden_layers": 80,
    "hidden_size": 8192,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "torch_dtype": "bfloat16",
}
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "hidden_size": 7168,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "torch_dtype": "bfloat16",
    "num_nextn_predict_layers": 1,
}
GEMMA_3_27B = {
    "model_type": "gemma3",
    "torch_dtype": "bfloat16",
    "text_config": {
        "model_type": "gemma3_text",
        "num_hidden_layers": 62,
        "hidden_size": 5376,
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "head_dim": 128,
        "sliding_window": 1024,
    },
    "vision_config": {"num_hidden_layers": 27, "hidden_size": 1152},
}
SMALL = {"num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "torch_dtype": "float16"}
"""Four layers of two KV heads of width 16 in 2 bytes: 128 bytes per token and layer."""


def shape(config: Mapping[str, object], **changes: object) -> KvShape:
    """The shape of a configuration with changes."""
    return KvShape.from_config({**config, **changes})


# The figures everybody knows


def test_llama_3_70b() -> None:
    """80 layers of 8 KV heads of 128 in bf16: 320 KiB per token, 196,608 tokens in 60 GiB, eight times that over eight GPUs."""
    model = shape(LLAMA_70B)
    assert model.bytes_per_token == 327_680
    assert model.pool_tokens(60 * GIB) == 196_608
    assert model.pool_tokens(60 * GIB, tp=8) == 1_572_864
    assert model.sequences(60 * GIB, 32 * 1024, tp=8) == 48
    assert model.sequences(60 * GIB, 128 * 1024, tp=8) == 12
    assert model == KvShape.uniform(80, 8, 128, "bfloat16")


def test_deepseek_v3() -> None:
    """One latent of 576 numbers per layer: 68.6 KiB per token, 9 GB for one request of 128K tokens; the prediction layer is not counted."""
    model = shape(DEEPSEEK_V3)
    assert model.bytes_per_token == 70_272
    assert model.sequence_bytes(128 * 1024) == pytest.approx(9.2e9, rel=0.01)
    assert model == KvShape.latent(61, 576, "bfloat16")


# What a GPU holds


def test_heads_are_split_while_there_are_any_and_repeated_after_that() -> None:
    """Eight heads over 16 GPUs: each holds one, and a token costs twice its copy on all GPUs together."""
    model = shape(LLAMA_70B)
    assert model.gpu_bytes_per_token(tp=8) == 40_960
    assert model.gpu_bytes_per_token(tp=16) == 40_960
    assert model.total_bytes_per_token(tp=8) == 327_680
    assert model.total_bytes_per_token(tp=16) == 655_360


def test_latent_is_repeated_on_every_rank() -> None:
    """Tensor parallelism buys no room for a latent, and its pool tokens count once."""
    model = shape(DEEPSEEK_V3)
    assert model.gpu_bytes_per_token(tp=8) == 70_272
    assert model.total_bytes_per_token(tp=8) == 8 * 70_272
    assert model.pool_tokens(60 * GIB, tp=8) == model.pool_tokens(60 * GIB)


def test_multi_query_is_repeated_like_a_latent() -> None:
    """One KV head cannot be split."""
    model = shape({**SMALL, "num_key_value_heads": None}, multi_query=True)
    assert (model.kv_heads, model.gpu_bytes_per_token(tp=4)) == (1, 4 * 64)


def test_pipeline_stages_hold_their_layers() -> None:
    """The stage with most layers bounds the pool; left-over layers go to stages before the last."""
    model = KvShape.uniform(10, 2, 16, "fp16")
    assert [len(stage.layers) for stage in model.stages(pp=4)] == [2, 3, 3, 2]
    assert [len(stage.layers) for stage in model.stages(pp=3)] == [3, 4, 3]
    assert model.gpu_bytes_per_token(tp=2, pp=4) == 3 * 64
    assert model.pool_tokens(1920, pp=4) == 5
    assert model.total_bytes_per_token(tp=2, pp=4) == model.bytes_per_token


@pytest.mark.parametrize(
    ("tp", "pp", "says"), [(3, 1, "8 KV heads cannot be split over 3 GPUs"), (1, 81, "80 layers cannot be split over 81")]
)
def test_splits_that_engines_refuse_are_refused(tp: int, pp: int, says: str) -> None:
    """Heads and ranks must divide one another, and a stage needs a layer."""
    with pytest.raises(UnknownShape, match=says):
        shape(LLAMA_70B).stages(tp, pp)


@given(st.integers(1, 64), st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4, 8, 16]), st.integers(1, 8), st.integers(1, 10**6))
def test_parallelism_never_holds_less_than_one_copy(layers: int, heads: int, tp: int, pp: int, length: int) -> None:
    """All GPUs together hold a token at least once, no GPU holds more than the whole copy, and the pool bounds the sequences."""
    model = KvShape.uniform(layers, heads, 16, "bf16")
    pp = min(pp, layers)
    assert model.total_bytes_per_token(tp, pp) >= model.bytes_per_token >= model.gpu_bytes_per_token(tp, pp)
    assert model.sequences(GIB, length, tp, pp) == model.pool_tokens(GIB, tp, pp) // length
    assert model.gpu_bytes_for(model.sequences(GIB, length, tp, pp), length, tp, pp) <= GIB


# Heads and widths


@pytest.mark.parametrize(
    ("changes", "per_layer"),
    [
        ({}, 128),
        ({"num_key_value_heads": None}, 256),
        ({"num_key_value_heads": None, "multi_query": True}, 64),
        ({"head_dim": 128}, 1024),
        ({"head_dim": 24, "v_head_dim": 16}, 160),
        ({"model_type": "falcon", "multi_query": True, "num_key_value_heads": None, "num_kv_heads": 4}, 64),
        (
            {"model_type": "falcon", "new_decoder_architecture": True, "multi_query": True, "num_key_value_heads": None, "num_kv_heads": 2},
            128,
        ),
        ({"model_type": "falcon", "multi_query": False, "num_key_value_heads": None}, 256),
        (
            {
                "model_type": "chatglm",
                "multi_query_attention": True,
                "multi_query_group_num": 2,
                "kv_channels": 32,
                "num_key_value_heads": None,
            },
            256,
        ),
        ({"attn_config": {"kv_n_heads": 1}, "num_key_value_heads": None}, 64),
        ({"torch_dtype": "float32"}, 128),
        ({"torch_dtype": None, "dtype": "bfloat16"}, 128),
        ({"torch_dtype": None}, 128),  # as published files of gpt-oss: engines load such weights in 16 bits
    ],
)
def test_heads_and_their_width(changes: Mapping[str, object], per_layer: int) -> None:
    """MHA, GQA and MQA in the words of their families; an explicit head width wins over hidden size per head."""
    assert shape(SMALL, **changes).bytes_per_token == 4 * per_layer


def test_gpt2_names() -> None:
    """``n_layer``, ``n_head`` and ``n_embd``."""
    config = {"model_type": "gpt2", "n_layer": 12, "n_head": 12, "n_embd": 768}
    assert KvShape.from_config(config, "fp16").bytes_per_token == 12 * 2 * 768 * 2


def test_heads_may_differ_by_layer() -> None:
    """A list of KV heads is read layer by layer, and blocks found by search may have no attention at all."""
    assert shape(SMALL, num_key_value_heads=[1, 2, 2, 4]).bytes_per_token == 64 * 9
    blocks = [
        {"attention": {"n_heads_in_group": 2}},
        {"attention": {"no_op": True}},
        {"attention": {"replace_with_linear": True}},
        {"attention": {"n_heads_in_group": 4, "window_length": 8}},
    ]
    searched = shape(SMALL, num_key_value_heads=None, block_configs=blocks)
    assert searched.bytes_per_token == 128 + 64
    assert searched.sequence_bytes(100) == 128 * 100 + 64 * 8


@pytest.mark.parametrize(
    ("dtype", "per_layer"),
    [
        ("auto", 128),
        ("bf16", 128),
        ("fp16", 128),
        ("float32", 256),
        ("fp8", 64),
        ("fp8_e4m3", 64),
        ("fp8_e5m2", 64),
        ("float8_e4m3fn", 64),
        ("int8", 64),
        ("nvfp4", 36),
        ("fp4", 36),
    ],
)
def test_kv_data_types(dtype: str, per_layer: int) -> None:
    """The engine's flag wins over the model's type; 4 bits carry a byte of scale per 16 numbers."""
    assert KvShape.from_config(SMALL, dtype).bytes_per_token == 4 * per_layer


def test_sparse_index_is_kept_beside_the_latent() -> None:
    """A sparse index adds 132 bytes per token and layer; 8 bits mean the mixed layout of 656 bytes, and the type must be said."""
    config = {**DEEPSEEK_V3, "model_type": "deepseek_v32", "index_head_dim": 128}
    assert KvShape.from_config(config, "bf16").bytes_per_token == 61 * (1152 + 132)
    assert KvShape.from_config(config, "fp8").bytes_per_token == 61 * (656 + 132)
    assert KvShape.from_config(DEEPSEEK_V3, "fp8").bytes_per_token == 61 * 576
    with pytest.raises(UnknownShape, match="--dtype"):
        KvShape.from_config(config)


# Windows


def test_gemma_3_holds_a_window_in_five_of_six_layers() -> None:
    """The nested language model counts; beyond 1,024 tokens only every sixth layer grows."""
    model = shape(GEMMA_3_27B)
    layer = 2 * 16 * 128 * 2
    assert model.bytes_per_token == 62 * layer
    assert model.sequence_bytes(1024) == 62 * layer * 1024
    assert model.sequence_bytes(32 * 1024) == layer * (10 * 32 * 1024 + 52 * 1024)


def test_gemma_3_text_relies_on_defaults_of_its_class() -> None:
    """The published 4B file says neither heads nor their width."""
    text = {"model_type": "gemma3_text", "num_hidden_layers": 34, "hidden_size": 2560, "sliding_window": 1024}
    assert KvShape.from_config({"text_config": text, "torch_dtype": "bfloat16"}).bytes_per_token == 34 * 2 * 4 * 256 * 2


@pytest.mark.parametrize(
    ("changes", "growing"),
    [
        ({"model_type": "mistral", "sliding_window": 10}, 0),
        ({"model_type": "mistral", "sliding_window": None}, 4),
        ({"model_type": "gemma2", "sliding_window": 10}, 2),
        ({"model_type": "gpt_oss", "sliding_window": 10, "layer_types": ["sliding_attention", "full_attention"] * 2}, 2),
        ({"model_type": "cohere2", "sliding_window": 10}, 1),
        ({"model_type": "other", "sliding_window": 10, "sliding_window_pattern": 4}, 1),
        ({"model_type": "exaone4", "sliding_window": 10, "sliding_window_pattern": "LG"}, 2),
        ({"model_type": "qwen2", "sliding_window": 10, "use_sliding_window": False, "max_window_layers": 1}, 4),
        ({"model_type": "qwen2", "sliding_window": 10, "max_window_layers": 1}, 4),
        ({"model_type": "qwen2", "sliding_window": 10, "use_sliding_window": True, "max_window_layers": 1}, 1),
        ({"model_type": "llama4_text", "attention_chunk_size": 10, "no_rope_layers": [1, 1, 1, 0]}, 1),
        ({"model_type": "llama4_text", "attention_chunk_size": 10, "no_rope_layers": []}, 1),
        ({"model_type": "mimo_v2_flash", "sliding_window": 10, "hybrid_layer_pattern": [0, 1, 1, 0]}, 2),
    ],
)
def test_windows_and_chunks(changes: Mapping[str, object], growing: int) -> None:
    """How many of four layers keep more than the window, in the words of their families."""
    model = shape(SMALL, **changes)
    assert model.bytes_per_token == 4 * 128
    assert model.sequence_bytes(1000) == 128 * (growing * 1000 + (4 - growing) * 10)


def test_sliding_layers_may_have_heads_of_their_own() -> None:
    """Window layers with other heads and widths, and full layers with wider ones."""
    mimo = shape(
        SMALL,
        head_dim=24,
        v_head_dim=16,
        sliding_window=10,
        hybrid_layer_pattern=[0, 1, 1, 1],
        swa_num_key_value_heads=4,
        swa_head_dim=24,
        swa_v_head_dim=16,
    )
    assert mimo.bytes_per_token == 2 * (2 * 40 + 3 * 4 * 40)
    gemma = shape(
        SMALL,
        head_dim=16,
        global_head_dim=32,
        num_global_key_value_heads=1,
        attention_k_eq_v=True,
        sliding_window=10,
        layer_types=["sliding_attention"] * 3 + ["full_attention"],
    )
    assert gemma.bytes_per_token == 3 * 128 + 1 * 64 * 2


# States


def test_only_attention_layers_count_per_token() -> None:
    """Jamba, Bamba, Nemotron-H, Qwen3-Next, Granite, LFM2, MiniMax and Kimi say in their own way which layers attend."""
    one_of_four: tuple[dict[str, object], ...] = (
        {"model_type": "jamba", "attn_layer_period": 4, "attn_layer_offset": 2},
        {"model_type": "bamba", "attn_layer_indices": [3]},
        {"model_type": "nemotron_h", "hybrid_override_pattern": "ME*-"},
        {"model_type": "qwen3_next", "full_attention_interval": 4},
        {"model_type": "granitemoehybrid", "layer_types": ["mamba", "mamba", "attention", "mamba"]},
        {"model_type": "lfm2", "full_attn_idxs": [1]},
        {"model_type": "minimax", "attn_type_list": [0, 0, 0, 1], "head_dim": 16},
        {"model_type": "zamba2", "layers_block_type": ["mamba", "hybrid", "mamba", "mamba"]},
        {
            "model_type": "hymba",
            "linear_attn_config": {"full_attn_layers": [4], "num_heads": 2, "head_dim": 8, "short_conv_kernel_size": 4},
        },
    )
    for changes in one_of_four:
        assert shape(SMALL, **changes).bytes_per_token == 128, changes
    assert shape(SMALL, model_type="falcon_h1").bytes_per_token == 4 * 128


def test_states_are_counted_per_sequence() -> None:
    """A state takes the same for every length: convolution inputs in 2 bytes, the recurrent part in 4 unless the model says 2."""
    mamba1 = shape(SMALL, model_type="jamba", attn_layer_period=4, attn_layer_offset=0, mamba_d_conv=4, mamba_d_state=16, mamba_expand=2)
    assert mamba1.state_bytes == 3 * (3 * 128 * 2 + 128 * 16 * 4)
    assert mamba1.sequence_bytes(10) == 128 * 10 + mamba1.state_bytes
    mamba2: dict[str, object] = {
        "layer_types": ["mamba", "attention", "attention", "attention"],
        "mamba_n_heads": 8,
        "mamba_d_head": 16,
        "mamba_d_state": 32,
        "mamba_d_conv": 4,
        "mamba_n_groups": 1,
    }
    assert shape(SMALL, **mamba2).state_bytes == 3 * (128 + 64) * 2 + 128 * 32 * 4
    assert shape(SMALL, **mamba2, mamba_ssm_dtype="bfloat16").state_bytes == 3 * (128 + 64) * 2 + 128 * 32 * 2
    assert shape(SMALL, **{**mamba2, "mamba_d_head": "auto"}, mamba_expand=2).state_bytes == 3 * (128 + 64) * 2 + 128 * 32 * 4
    delta = shape(
        SMALL,
        full_attention_interval=4,
        linear_num_value_heads=4,
        linear_num_key_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        linear_conv_kernel_dim=4,
    )
    assert delta.state_bytes == 3 * (3 * 64 * 2 + 4 * 64 * 4)
    assert delta.stages(tp=2)[0].state_bytes == delta.state_bytes / 2


def test_unknown_state_is_not_zero() -> None:
    """Layers whose state has no known shape leave the bytes per token exact and the state unknown."""
    model = shape(SMALL, layer_types=["linear_attention", "full_attention"] * 2)
    assert model.bytes_per_token == 2 * 128
    assert model.state_bytes is None


def test_image_layers_keep_no_text_tokens() -> None:
    """Cross-attention layers hold an image's tokens, whose number is not in the file."""
    model = shape(SMALL, cross_attention_layers=[1, 3])
    assert model.bytes_per_token == 2 * 128
    assert model.state_bytes is None


def test_layers_that_share_the_keys_of_others_keep_nothing() -> None:
    """The last ``num_kv_shared_layers`` layers read what earlier ones keep; 0 means that none does."""
    assert shape(SMALL, num_kv_shared_layers=1).bytes_per_token == 3 * 128
    assert shape(SMALL, num_kv_shared_layers=0).bytes_per_token == 4 * 128


# Nested and refused


def test_nested_language_model_is_found_and_outer_types_count() -> None:
    """Multimodal files nest the language model, once or twice, and may keep the data type outside."""
    text = {key: value for key, value in SMALL.items() if key != "torch_dtype"}
    assert KvShape.from_config({"text_config": text, "torch_dtype": "float16", "num_hidden_layers": 99}).bytes_per_token == 4 * 128
    assert KvShape.from_config({"thinker_config": {"text_config": SMALL}}).bytes_per_token == 4 * 128
    assert KvShape.from_config({**SMALL, "text_config": {"model_type": "qwen2_vl_text"}}).bytes_per_token == 4 * 128


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"num_hidden_layers": None}, "num_hidden_layers"),
        ({"num_hidden_layers": "4"}, "not a whole number"),
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_size": 66}, "head_dim"),
        ({"torch_dtype": "int3"}, "int3"),
        ({"layer_types": ["full_attention", "quantum_attention"] * 2}, "quantum_attention"),
        ({"layer_types": [["full_attention"]] * 4}, "layer_types"),
        ({"layer_types": ["full_attention"] * 3}, "4 layers and says of 3"),
        ({"layer_types": ["sliding_attention"] * 4}, "sliding_window"),
        ({"sliding_window": 10}, "which layers"),
        ({"mamba_d_state": 16}, "mamba_d_state"),
        ({"kv_lora_rank": 512}, "qk_rope_head_dim"),
        ({"kv_lora_rank": 256, "model_type": "minicpm3"}, "minicpm3"),
        ({"qk_nope_head_dim": 128}, "kv_lora_rank"),
        ({"use_cla": True}, "use_cla"),
        ({"compress_ratios": [4]}, "compress_ratios"),
        ({"is_encoder_decoder": True}, "encoder-decoder"),
        ({"model_type": "mamba2"}, "no attention layer"),
        ({"block_configs": [{"attention": {}}]}, "n_heads_in_group"),
        ({"quantization_config": {"kv_cache_scheme": {"num_bits": 8}}}, "--dtype"),
        ({"num_key_value_heads": [2]}, "num_key_value_heads"),
    ],
)
def test_what_the_file_leaves_open_is_refused(changes: Mapping[str, object], says: str) -> None:
    """Nothing is guessed: one line names what is missing."""
    with pytest.raises(UnknownShape, match=says) as refusal:
        shape(SMALL, **changes)
    assert "\n" not in str(refusal.value)


def test_flags_of_an_unknown_type_are_refused() -> None:
    """A type nobody knows has no width, and a layout that depends on the model needs the model."""
    for dtype in ("bf17", "fp8_per_token_head"):  # the latter keeps a scale for every token and head
        with pytest.raises(UnknownShape, match=dtype):
            KvShape.uniform(1, 1, 1, dtype)
    with pytest.raises(UnknownShape, match="--model"):
        KvShape.latent(1, 576, "fp8_ds_mla")
