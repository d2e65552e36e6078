"""The schema of the configuration: each key with its type, its default and its meaning, said once.

Values arrive as the words of the file (document.py); defaults are written as words too, so that the table of settings shows what one
would write.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, field_validator, model_validator

from kvwatch.address import Address, parse_address, parse_listen
from kvwatch.schema import EngineName
from kvwatch.units import parse_duration, parse_size

RESERVED_LABELS = frozenset(
    "target engine model rank tier pool state rule severity reason gpu uuid pid url le instance job".split()  # noqa: SIM905  a list of words
)
"""Labels that kvwatch or Prometheus gives; a target's own labels must be others."""

T = TypeVar("T")


def _words(read: Callable[[str], T]) -> BeforeValidator:
    """A reader of one word as a validator."""

    def check(value: object) -> T:
        if not isinstance(value, str):
            raise ValueError("must be a single value")  # noqa: TRY004  pydantic wants ValueError
        return read(value)

    return BeforeValidator(check)


def _seconds(least: float) -> BeforeValidator:
    def read(text: str) -> float:
        seconds = parse_duration(text)
        if seconds < least:
            msg = f"must be at least {least:g} s"
            raise ValueError(msg)
        return seconds

    return _words(read)


def _bytes(text: str) -> int:
    size = parse_size(text)
    if size == 0:
        raise ValueError("must be more than nothing")
    return size


def _switch(text: str) -> bool:
    """``auto`` or ``off``; YAML's own words for true and false mean the same."""
    if text.lower() not in {"auto", "on", "true", "yes", "off", "false", "no"}:
        raise ValueError("must be auto or off")
    return text.lower() not in {"off", "false", "no"}


def _label(name: str) -> str:
    if not re.fullmatch(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*", name, re.ASCII):
        msg = f"{name[:60]!r} is no label name: letters, digits and _, not a digit first"
        raise ValueError(msg)
    if name in RESERVED_LABELS:
        msg = f"the label {name!r} is set by kvwatch or Prometheus: choose another name"
        raise ValueError(msg)
    return name


def _endpoint(text: str) -> str:
    if not re.fullmatch(r"(tcp|ipc)://\S+", text):
        raise ValueError("must be a ZeroMQ endpoint, as in tcp://127.0.0.1:5557")
    return text


Text = Annotated[str, Field(min_length=1)]
Size = Annotated[int, _words(_bytes)]
Switch = Annotated[bool, _words(_switch)]
Url = Annotated[Address, _words(parse_address)]
Endpoint = Annotated[str, _words(_endpoint)]


def _key(default: object, meaning: str, **options: Any) -> Any:  # noqa: ANN401  what a field is declared with
    """A key: its default as one would write it, and what it means."""
    return Field(default, description=meaning, **options)


class Section(BaseModel):
    """A mapping of known keys; a key without a value is as good as no key."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    @model_validator(mode="before")
    @classmethod
    def _drop_empty(cls, data: object) -> object:
        known = {field.alias or name for name, field in cls.model_fields.items()}
        return {k: v for k, v in data.items() if v is not None or k not in known} if isinstance(data, dict) else data


class TlsSettings(Section):
    """How a target's certificate is judged."""

    ca_file: Text | None = _key(None, "PEM file of the CA to trust; else the public ones")
    insecure_skip_verify: bool = _key("false", "accept any certificate")
    server_name: Text | None = _key(None, "the name the certificate must be for, when it is not the URL's host")


class L2Settings(Section):
    """What an engine does not export about its host tier."""

    capacity: Size | None = _key(None, "size of the host tier, where the engine does not export it (in-process LMCache)")
    per: Literal["worker", "instance"] = _key("worker", "whether `capacity` is one worker's or the whole tier's")
    workers: int | None = _key(None, "workers to multiply with; else those seen", ge=1)
    source: Text | None = _key(None, "name of the LMCache server target that is this engine's L2; stands alone", alias="from")

    @model_validator(mode="after")
    def _stand_alone(self) -> L2Settings:
        if self.source is not None and len(self.model_fields_set) > 1:
            raise ValueError("'from' stands alone: the LMCache server exports what the other keys would say")
        return self


class EventSettings(Section):
    """Where vLLM publishes KV events."""

    subscribe: list[Endpoint] = _key(..., "endpoints to subscribe to, one per data-parallel rank", min_length=1)
    replay: list[Endpoint] = _key([], "endpoints that replay missed events, in the same order")
    bind: bool = _key("false", "whether the engine connects to us")

    @model_validator(mode="after")
    def _pair(self) -> EventSettings:
        if self.replay and len(self.replay) != len(self.subscribe):
            raise ValueError("'replay' needs as many endpoints as 'subscribe'")
        return self


Events = Annotated[
    Annotated[EventSettings, Tag("(mapping)")] | Annotated[Switch, Tag("(word)")],
    Discriminator(lambda value: "(mapping)" if isinstance(value, dict) else "(word)"),
]


class SideSettings(Section):
    """Which pages beside /metrics may be asked."""

    loads: Switch = _key("auto", "ask SGLang's `/v1/loads`: auto or off")
    server_info: Switch = _key("auto", "ask SGLang's `/server_info`: auto or off")
    events: Events = _key("auto", "read vLLM's KV events: auto, off, or where they are")


class TargetSettings(Section):
    """One thing to scrape."""

    name: Text | None = _key(None, "the `target` label, unique; else `host:port`")
    url: Url | None = _key(None, "what to scrape; `/metrics` is appended to an empty path")
    engine: Literal["auto", EngineName] = _key("auto", "what to expect there: auto, vllm, sglang or lmcache")
    labels: dict[Annotated[str, AfterValidator(_label)], str] = _key({}, "labels of `kvwatch_target_info`")
    bearer_token_file: Text | None = _key(None, "file with a token, read at each scrape and never printed")
    tls: TlsSettings = TlsSettings()
    l2: L2Settings = L2Settings()
    model_file: Text | None = _key(None, "the model's `config.json`, for bytes per token", alias="model_config")
    gpus: list[Text] = _key([], "UUIDs of this engine's GPUs")
    side: SideSettings = SideSettings()

    @field_validator("name")
    @classmethod
    def _one_line(cls, name: str | None) -> str | None:
        if name is not None and not name.isprintable():
            raise ValueError("must be printable")
        return name

    @model_validator(mode="after")
    def _one_proof(self) -> TargetSettings:
        if self.bearer_token_file is not None and self.url is not None and self.url.userinfo is not None:
            raise ValueError("the url holds a user: use that or bearer_token_file, not both")
        return self


class SloSettings(Section):
    """What the operator promised."""

    ttft_p99: Annotated[float, _seconds(0.001)] | None = _key(None, "slowest acceptable p99 of the time to first token")


class LimitSettings(Section):
    """What a scrape may cost."""

    body: Size = _key("64MiB", "decompressed bytes of one scrape")


class Settings(Section):
    """The whole file."""

    listen: Annotated[tuple[str, int], _words(parse_listen)] = _key("[::]:9477", "address of kvwatch's own pages")
    interval: Annotated[float, _seconds(1)] = _key("15s", "time between scrapes; 5s is fine beside the engine, 1s the least")
    timeout: Annotated[float, _seconds(0.1)] | None = _key(None, "time for one scrape; else the interval, at most 10s")
    startup_grace: Annotated[float, _seconds(0)] = _key("15m", "how long a target that never answered may be starting")
    window: Annotated[float, _seconds(1)] = _key("60s", "what rates and quantiles look back to")
    targets: list[TargetSettings] = _key([], "what to scrape")
    slo: SloSettings = SloSettings()
    thresholds: dict[str, dict[str, str]] = _key({}, "by rule id: limits of its signals, and `hold`")
    limits: LimitSettings = LimitSettings()
    nvml: Switch = _key("auto", "watch the GPUs of this machine: auto or off")
    gpu_processes: bool = _key("false", "export the memory of GPU processes by pid")
    reload_endpoint: bool = _key("false", "serve POST `/-/reload`")


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One key of the configuration (``targets[].tls.ca_file``), its default as one would write it ("" when there is none), its meaning."""

    name: str
    default: str
    meaning: str


def describe() -> tuple[ConfigKey, ...]:
    """Every key there is, in the order of the schema."""
    return tuple(_described(Settings, ""))


def _described(section: type[Section], prefix: str) -> Iterator[ConfigKey]:
    for attribute, field in section.model_fields.items():
        name = prefix + (field.alias or attribute)
        if field.description is not None:
            yield ConfigKey(name, field.default if isinstance(field.default, str) else "", field.description)
        inside = f"{name}[]." if field.annotation is not None and getattr(field.annotation, "__origin__", None) is list else f"{name}."
        for part in _sections(field.annotation):
            yield from _described(part, inside)


def _sections(annotation: object) -> Iterator[type[Section]]:
    """The sections that a type is made of."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
    for part in get_args(annotation):
        yield from _sections(part)
