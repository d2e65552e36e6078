"""The commands: each from its arguments to those who do the work, and to an exit code."""

from __future__ import annotations

import argparse
import errno
import json
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kvwatch.address import parse_listen
from kvwatch.catalogue import as_json, plain_page, table
from kvwatch.config import Config, Overrides, from_environment, load, load_file, overlaid, target_from_url
from kvwatch.rules import RULES, active, names
from kvwatch.rules.kinds import ActiveRule
from kvwatch.sizing import token_sizes

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO})
"""Errors of a disk that takes no more; what could not be written ends every command alike."""


class UsageError(Exception):
    """Arguments that are each fine but not together."""


def _overrides(path: Path | None, urls: Sequence[str] = (), listen: str | None = None) -> Overrides:
    """What the command line says."""
    try:
        place = None if listen is None else parse_listen(listen)
        return Overrides(None if path is None else str(path), place, tuple(target_from_url(u) for u in urls))
    except ValueError as error:
        raise UsageError(str(error)) from None


def _load(given: Overrides, *, need_urls: bool = False) -> Config:
    """The configuration: command line before environment before file."""
    said = given.over(from_environment(os.environ))
    config = load_file(said.config_file, names(), need_urls=need_urls) if said.config_file else load("", "no file", names())
    return overlaid(config, said)


def _load_sized(given: Overrides, *, need_urls: bool = False) -> Config:
    """The same with what the models' files say of a token, for those who watch."""
    config = _load(given, need_urls=need_urls)
    return replace(config, targets=tuple(replace(t, kv_bytes_per_token=token_sizes(t.model_config)) for t in config.targets))


def serve(args: argparse.Namespace) -> int:
    """Watch until told to end."""
    # Until the daemon handles them: SIGTERM means nothing to the first process of a container, and SIGHUP would be its end.
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(0))
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    from kvwatch.daemon import run  # noqa: PLC0415  the web stack is heavy and only this command needs it

    given = _overrides(args.config, args.target, args.listen)

    def load_again() -> Config:
        return _load_sized(given, need_urls=True)

    return run(load_again(), load_again)


def diagnose(args: argparse.Namespace) -> int:
    """Judge once, or after each sample."""
    from kvwatch import diagnosing  # noqa: PLC0415

    columns = shutil.get_terminal_size().columns if sys.stdout is not None and sys.stdout.isatty() else None
    printing = diagnosing.Printing(args.output == "json", args.timeline, sys.stdout, columns)
    are_urls = [_is_url(s) for s in args.sources]
    if any(are_urls) and not all(are_urls):
        raise UsageError("URLs and files cannot be judged together: name one kind")
    if all(are_urls):
        return diagnosing.from_urls(_load_sized(_overrides(args.config, args.sources)), args.interval, args.seconds, printing)
    return diagnosing.from_files([Path(s) for s in args.sources], _load_sized(_overrides(args.config)), args.interval, printing)


def _is_url(source: str) -> bool:
    """Whether a source is an address: it names a scheme, or looks like HOST:PORT and is no file."""
    if "://" in source:
        return True
    host, colon, rest = source.rpartition(":")
    port = rest.split("/", maxsplit=1)[0]
    try:
        return bool(colon and host) and port.isdecimal() and not Path(source).exists()
    except OSError:
        return False


def demo(args: argparse.Namespace) -> int:
    """Replay incidents and watch them."""
    from kvwatch.demo import run  # noqa: PLC0415

    return run(args.seconds, _overrides(None, listen=args.listen).listen, args.skip, sys.stdout)


def rules(args: argparse.Namespace) -> int:
    """List all findings."""
    wanted = active(_load(_overrides(args.config)).thresholds)
    print(json.dumps(as_json(wanted), indent=1) if args.output == "json" else table(wanted).rstrip("\n"))
    return 0


def explain(args: argparse.Namespace) -> int:
    """Print a finding's page."""
    if args.rule not in RULES:
        raise UsageError(f"no rule is called '{args.rule}'; there are {', '.join(RULES)}")
    print(plain_page(ActiveRule(RULES[args.rule], {})).rstrip("\n"))
    return 0


def render(args: argparse.Namespace) -> int:
    """Write what comes from the catalogues, or say what is not up to date."""
    from kvwatch import render as rendering  # noqa: PLC0415  only this command needs it

    if args.what not in {"all", *rendering.RENDERERS}:
        raise UsageError(f"'{args.what}' cannot be rendered; there are all, {', '.join(rendering.RENDERERS)}")
    wanted = list(rendering.RENDERERS) if args.what == "all" else [args.what]
    config = _load(_overrides(args.config))
    url = args.runbook_url or rendering.RUNBOOK_URL
    site = rendering.Site(active(config.thresholds), args.output, url, config.window, config.interval)
    try:
        texts = rendering.render(wanted, site)
        stale = rendering.drifted(texts, args.output)
        if not args.check:
            rendering.write({path: texts[path] for path in stale}, args.output)
            return 0
    except rendering.MissingExtraError as error:
        raise UsageError(str(error)) from None
    except UnicodeDecodeError:
        raise UsageError(f"{args.output / 'README.md'}: is no UTF-8 text; name another folder with --output") from None
    except OSError as error:
        if error.errno in NO_ROOM:
            raise
        raise UsageError(f"{error.filename}: {error.strerror}; name a folder with --output that can be written") from None
    for path in stale:
        print(f"kvwatch render: {args.output / path} is not what would be rendered: run kvwatch render", file=sys.stderr)
    return 1 if stale else 0


def check_config(args: argparse.Namespace) -> int:
    """Say what is wrong in a configuration file."""
    config = load_file(str(args.file), names(), need_urls=True)
    named = dict.fromkeys(path for t in config.targets for path in (t.model_config, t.bearer_token_file, t.tls.ca_file) if path is not None)
    elsewhere = [path for path in named if not os.access(path, os.R_OK)]
    for target in config.targets:
        if target.model_config not in elsewhere:
            token_sizes(target.model_config)
    but = f"; cannot be read here: {', '.join(elsewhere)}" if elsewhere else ""
    print(f"{args.file}: fine, {len(config.targets)} target{'s' if len(config.targets) != 1 else ''}{but}")
    return 0
