"""The capacity account: how many bytes the KV cache of one token takes, and so how many tokens and sequences a pool can hold.

Three figures must not be mixed up. One *copy* of a token is what the model keeps of it. Each *GPU* holds a share of that copy: tensor
parallelism divides the KV heads while there are heads to divide and repeats them after that (a latent is repeated at once), pipeline
parallelism divides the layers. And a token counts *once* in the pool, whatever the GPUs: pool tokens are what one GPU's bytes hold.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from kvwatch.capacity.architecture import layers_of
from kvwatch.capacity.fields import Fields
from kvwatch.capacity.layers import Layer, UnknownShape
from kvwatch.capacity.widths import width_in, width_of

__all__ = ["KvShape", "Layer", "UnknownShape"]


@dataclass(frozen=True, slots=True)
class KvShape:
    """What a model, or one GPU's part of it, keeps: its layers, and the bytes of one number (``dtype`` by name)."""

    layers: tuple[Layer, ...]
    dtype: str
    width: Fraction

    @classmethod
    def from_config(cls, config: Mapping[str, object], dtype: str = "auto") -> KvShape:
        """Read a Hugging Face ``config.json``; ``dtype`` is the engine's KV data type flag.

        Raises UnknownShape, in one line, for whatever the configuration leaves open.
        """
        fields = Fields.of(config)
        layers = layers_of(fields)
        if not any(layer.heads for layer in layers):
            raise UnknownShape("the model has no attention layer: its memory per sequence does not grow with tokens")
        return cls(layers, *width_in(fields, dtype))

    @classmethod
    def uniform(cls, layers: int, kv_heads: int, head_dim: int, dtype: str) -> KvShape:
        """A model whose layers all attend to everything with the same heads."""
        return cls((Layer(kv_heads, 2 * head_dim),) * layers, dtype, width_of(dtype))

    @classmethod
    def latent(cls, layers: int, latent: int, dtype: str) -> KvShape:
        """A model that keeps one latent of that many numbers per token and layer (MLA)."""
        return cls((Layer(1, latent),) * layers, dtype, width_of(dtype))

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token in all layers, while the sequence is shorter than every window. One copy for a whole model."""
        return math.ceil(sum((self._layer_bytes(layer) for layer in self.layers), Fraction(0)))

    @property
    def kv_heads(self) -> int:
        """Most KV heads of any layer: up to this many GPUs tensor parallelism divides them."""
        return max(layer.heads for layer in self.layers)

    @property
    def state_bytes(self) -> int | None:
        """Bytes a sequence takes whatever its length; None when a layer keeps a state whose size is not known."""
        states = [layer.state_bytes for layer in self.layers]
        known = [s for s in states if s is not None]
        return sum(known) if len(known) == len(states) else None

    def sequence_bytes(self, length: int) -> int:
        """Bytes of a sequence of ``length`` tokens: windows hold what they hold; an unknown state is left out."""
        tokens = sum((self._layer_bytes(layer) * layer.tokens_of(length) for layer in self.layers), Fraction(0))
        return math.ceil(tokens + sum(layer.state_bytes for layer in self.layers if layer.state_bytes is not None))

    def stages(self, tp: int = 1, pp: int = 1) -> tuple[KvShape, ...]:
        """What one GPU of each pipeline stage keeps.

        Raises UnknownShape for a split that engines refuse: heads and ranks must divide one another, and each stage needs a layer.
        """
        if pp > len(self.layers):
            msg = f"{len(self.layers)} layers cannot be split over {pp} pipeline stages"
            raise UnknownShape(msg)
        shared = [_share(layer, tp) for layer in self.layers]
        sizes, start, found = _stage_sizes(len(shared), pp), 0, []
        for size in sizes:
            found.append(KvShape(tuple(shared[start : start + size]), self.dtype, self.width))
            start += size
        return tuple(found)

    def gpu_bytes_per_token(self, tp: int = 1, pp: int = 1) -> int:
        """Bytes of one token on the GPU that holds most of it."""
        return max(stage.bytes_per_token for stage in self.stages(tp, pp))

    def total_bytes_per_token(self, tp: int = 1, pp: int = 1) -> int:
        """Bytes of one token on all GPUs together, repeated heads and latents included."""
        return tp * sum(stage.bytes_per_token for stage in self.stages(tp, pp))

    def pool_tokens(self, gpu_bytes: int, tp: int = 1, pp: int = 1) -> int:
        """Tokens of a pool with ``gpu_bytes`` for KV on each GPU."""
        return gpu_bytes // self.gpu_bytes_per_token(tp, pp)

    def sequences(self, gpu_bytes: int, length: int, tp: int = 1, pp: int = 1) -> int:
        """How many sequences of ``length`` tokens such a pool holds at once."""
        return min(gpu_bytes // stage.sequence_bytes(length) for stage in self.stages(tp, pp) if stage.sequence_bytes(length))

    def gpu_bytes_for(self, sequences: int, length: int, tp: int = 1, pp: int = 1) -> int:
        """Bytes for KV each GPU needs to hold ``sequences`` of ``length`` tokens."""
        return sequences * max(stage.sequence_bytes(length) for stage in self.stages(tp, pp))

    def _layer_bytes(self, layer: Layer) -> Fraction:
        return layer.heads * layer.values * self.width + layer.index_bytes


def _share(layer: Layer, tp: int) -> Layer:
    """One tensor-parallel rank's part of a layer."""
    heads = layer.heads
    if heads > 0 and heads % tp and tp % heads:
        msg = f"{heads} KV heads cannot be split over {tp} GPUs: one number must divide the other"
        raise UnknownShape(msg)
    state = None if layer.state_bytes is None else -(-layer.state_bytes // tp)
    return Layer(max(1, heads // tp) if heads else 0, layer.values, layer.window, layer.index_bytes, state)


def _stage_sizes(layers: int, pp: int) -> list[int]:
    """Layers per pipeline stage; what is left over goes to the stages before the last (vllm/distributed/utils.py, get_pp_indices)."""
    sizes = [layers // pp] * pp
    for stage in range(pp - 2, pp - 2 - layers % pp, -1):
        sizes[stage] += 1
    return sizes
