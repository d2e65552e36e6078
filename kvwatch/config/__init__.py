"""The configuration: file and environment in, frozen plain values out.

The only reader of YAML and of the environment. Command line beats environment beats file (``overlaid``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kvwatch.address import Address, parse_address, parse_listen
from kvwatch.config.check import Rules, check, limit, names
from kvwatch.config.document import BrokenError, Problem, read
from kvwatch.config.settings import ConfigKey, EventSettings, Settings, SideSettings, TargetSettings, describe
from kvwatch.target import EventSource, L2Setting, Side, Target, Tls
from kvwatch.wording import printable

__all__ = [
    "ENVIRONMENT",
    "Config",
    "ConfigError",
    "ConfigKey",
    "Overrides",
    "describe",
    "from_environment",
    "load",
    "load_file",
    "overlaid",
    "target_from_url",
]

_MOST_BYTES = 1 << 20
_LONGEST_TIMEOUT = 10.0
_LONGEST_LINE = 500
_USERINFO = re.compile(r"://[^/\s]*@")

ENVIRONMENT = (
    ConfigKey("KVWATCH_CONFIG", "", "the configuration file"),
    ConfigKey("KVWATCH_TARGETS", "", "URLs to scrape, with commas between them, instead of the file's targets"),
    ConfigKey("KVWATCH_LISTEN", "", "address of kvwatch's own pages"),
)
"""The environment variables that count."""


class ConfigError(Exception):
    """The configuration is wrong; ``lines`` has one sentence per problem, each with its place."""

    def __init__(self, lines: Sequence[str]) -> None:
        """Carry the lines: without passwords of URLs, control characters and what is too long to read."""
        self.lines = tuple(_readable(line) for line in lines)
        super().__init__("\n".join(self.lines))


def _readable(line: str) -> str:
    shown = printable(_USERINFO.sub("://***@", line))
    return shown if len(shown) <= _LONGEST_LINE else f"{shown[:_LONGEST_LINE]}..."


@dataclass(frozen=True, slots=True)
class Config:
    """Everything that can be set. Times are seconds, ``limit_bytes`` are decompressed bytes of one scrape.

    ``thresholds`` has by rule id the limits of its signals and, as "hold", the seconds of its hold.
    """

    listen_host: str
    listen_port: int
    interval: float
    timeout: float
    startup_grace: float
    window: float
    targets: tuple[Target, ...]
    slo_ttft_p99: float | None
    thresholds: Mapping[str, Mapping[str, float]]
    limit_bytes: int
    nvml: bool
    gpu_processes: bool
    reload_endpoint: bool


@dataclass(frozen=True, slots=True)
class Overrides:
    """What the environment or the command line says instead of the file."""

    config_file: str | None = None
    listen: tuple[str, int] | None = None
    targets: tuple[Target, ...] = ()

    def over(self, other: Overrides) -> Overrides:
        """These where they say something, else the others."""
        return Overrides(self.config_file or other.config_file, self.listen or other.listen, self.targets or other.targets)


def load_file(path: str, rules: Rules, *, need_urls: bool = False) -> Config:
    """Read a configuration file. Raises ConfigError with all problems in it; see ``load``."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError([f"{path}: cannot be read ({error.strerror}): correct the path of the configuration"]) from None
    if len(content) > _MOST_BYTES:
        raise ConfigError([f"{path}: larger than 1 MiB: is that the configuration?"])
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError([f"{path}:{line}: not UTF-8: save it in that encoding"]) from None
    return load(text, path, rules, need_urls=need_urls)


def load(text: str, path: str, rules: Rules, *, need_urls: bool = False) -> Config:
    """Read a configuration; ``path`` names it in problems, and relative files are beside it.

    ``rules`` has the rule ids with the signals whose limits may be set. ``need_urls`` refuses targets without a URL: they serve as
    settings for files only. Raises ConfigError with one line per problem, in the order of the file.
    """
    try:
        settings, problems = check(read(text), rules, need_urls=need_urls)
    except BrokenError as error:
        settings, problems = None, (error.problem,)
    if settings is None or problems:
        raise ConfigError(_lines(path, problems))
    return _config(settings, Path(path).parent)


def _lines(path: str, problems: Sequence[Problem]) -> list[str]:
    return [f"{path}:{problem.line}: {problem.text}" for problem in problems]


def target_from_url(url: str) -> Target:
    """A target without settings of its own; ValueError with a sentence when the URL is none."""
    address = parse_address(url)
    return Target(address.netloc, address.url, userinfo=address.userinfo)


def from_environment(environ: Mapping[str, str]) -> Overrides:
    """What the environment says; an empty variable says nothing. Raises ConfigError."""
    lines: list[str] = []
    targets: list[Target] = []
    listen: tuple[str, int] | None = None
    for url in environ.get("KVWATCH_TARGETS", "").split(","):
        try:
            targets += [target_from_url(url)] if url.strip() else []
        except ValueError as error:
            lines.append(f"KVWATCH_TARGETS: {error}")
    if environ.get("KVWATCH_LISTEN"):
        try:
            listen = parse_listen(environ["KVWATCH_LISTEN"])
        except ValueError as error:
            lines.append(f"KVWATCH_LISTEN: {error}")
    if lines:
        raise ConfigError(lines)
    return Overrides(environ.get("KVWATCH_CONFIG") or None, listen, tuple(targets))


def overlaid(config: Config, overrides: Overrides) -> Config:
    """The configuration with what the environment and the command line say.

    A URL takes the settings of the configured target with the same URL and no other's; the targets given are all there are.
    """
    if overrides.listen is not None:
        host, port = overrides.listen
        config = replace(config, listen_host=host, listen_port=port)
    if not overrides.targets:
        return config
    given = {target.url: target for target in overrides.targets}
    known = {target.url: target for target in config.targets if target.url}
    named = names((known[url].name if url in known else None, parse_address(url)) for url in given)
    targets = tuple(
        replace(known.get(url, target), name=name, userinfo=target.userinfo or known.get(url, target).userinfo)
        for (url, target), name in zip(given.items(), named, strict=True)
    )
    return replace(config, targets=targets)


def _config(settings: Settings, folder: Path) -> Config:
    host, port = settings.listen
    named = names((target.name, target.url) for target in settings.targets)
    return Config(
        listen_host=host,
        listen_port=port,
        interval=settings.interval,
        timeout=min(settings.interval, _LONGEST_TIMEOUT) if settings.timeout is None else settings.timeout,
        startup_grace=settings.startup_grace,
        window=settings.window,
        targets=tuple(_target(target, name, folder) for target, name in zip(settings.targets, named, strict=True)),
        slo_ttft_p99=settings.slo.ttft_p99,
        thresholds={rule: {signal: limit(signal, word) for signal, word in limits.items()} for rule, limits in settings.thresholds.items()},
        limit_bytes=settings.limits.body,
        nvml=settings.nvml,
        gpu_processes=settings.gpu_processes,
        reload_endpoint=settings.reload_endpoint,
    )


def _target(settings: TargetSettings, name: str, folder: Path) -> Target:
    address: Address | None = settings.url
    tls, l2 = settings.tls, settings.l2
    return Target(
        name=name,
        url="" if address is None else address.url,
        engine=settings.engine,
        labels=settings.labels,
        bearer_token_file=_beside(folder, settings.bearer_token_file),
        tls=Tls(_beside(folder, tls.ca_file), tls.server_name, tls.insecure_skip_verify),
        l2=L2Setting(l2.capacity, l2.per, l2.workers, l2.source),
        model_config=_beside(folder, settings.model_file),
        gpus=tuple(settings.gpus),
        side=_side(settings.side),
        userinfo=None if address is None else address.userinfo,
    )


def _beside(folder: Path, file: str | None) -> str | None:
    """A file named in the configuration: relative to it, as Prometheus does."""
    return None if file is None else str(folder / file)


def _side(settings: SideSettings) -> Side:
    events = settings.events
    if not isinstance(events, EventSettings):
        return Side(settings.loads, settings.server_info, events)
    source = EventSource(tuple(events.subscribe), tuple(events.replay), events.bind)
    return Side(settings.loads, settings.server_info, events=True, event_source=source)
