"""Typed access to a model's ``config.json``, whose keys differ by family and whose language model may be nested."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvwatch.capacity.layers import UnknownShape

NESTED = ("text_config", "llm_config", "language_config", "thinker_config")
"""Where multimodal models keep the configuration of their language model."""
MOST, MOST_LAYERS = 10**9, 10**5
"""No model comes near; what is beyond is a broken file and would cost memory or overflow."""
LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")

CLASS_DEFAULTS: Mapping[str, Mapping[str, object]] = {
    "gemma3_text": {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096},
}
"""What published files of a model type leave to the defaults of its class in transformers."""


@dataclass(frozen=True, slots=True)
class Fields:
    """The keys of one language model."""

    raw: Mapping[str, object]

    @classmethod
    def of(cls, config: Mapping[str, object]) -> Fields:
        """Find the language model in a configuration; data type and quantisation may stand outside of it."""
        inner = config
        while (nested := next((n for key in NESTED if isinstance(n := inner.get(key), Mapping) and n), None)) is not None:
            outer = inner if not any(nested.get(key) is not None for key in LAYERS) else {}
            shared = {key: inner[key] for key in ("torch_dtype", "dtype", "quantization_config") if inner.get(key) is not None}
            without = {key: value for key, value in outer.items() if key not in NESTED}
            inner = {**shared, **without, **{key: value for key, value in nested.items() if value is not None}}
        return cls({**CLASS_DEFAULTS.get(str(inner.get("model_type")), {}), **inner})

    @property
    def model_type(self) -> str:
        """The family's name, "" when absent."""
        return self.text("model_type") or ""

    def number(self, *names: str) -> int | None:
        """The first of these keys that is set and not 0, a whole number; None when none is.

        Raises UnknownShape when one is set to something else.
        """
        for name in names:
            value = self.raw.get(name)
            if value in (None, 0, False):  # families write 0 and false for "not used"
                continue
            most = MOST_LAYERS if name in LAYERS else MOST
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= most or value != int(value):
                msg = f"{name} in the configuration is {str(value)[:40]!r}, not a whole number up to {most:,}"
                raise UnknownShape(msg)
            return int(value)
        return None

    def need(self, *names: str) -> int:
        """The same, where the answer depends on it."""
        found = self.number(*names)
        if found is None:
            msg = f"the configuration does not say {' or '.join(names)}"
            raise UnknownShape(msg)
        return found

    def text(self, name: str) -> str | None:
        """A text, or None."""
        value = self.raw.get(name)
        return value if isinstance(value, str) else None

    def flag(self, name: str) -> bool:
        """Whether a key is set to true."""
        return self.raw.get(name) is True

    def sequence(self, name: str) -> tuple[object, ...] | None:
        """A list, or None when it is absent or empty."""
        value = self.raw.get(name)
        return tuple(value) if isinstance(value, list | tuple) and value else None

    def inner(self, name: str) -> Fields:
        """A nested object, empty when absent."""
        value = self.raw.get(name)
        return Fields(value if isinstance(value, Mapping) else {})

    def has(self, *names: str) -> bool:
        """Whether any of these keys is set."""
        return any(self.raw.get(name) not in (None, False, [], {}) for name in names)
