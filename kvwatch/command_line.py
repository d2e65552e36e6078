"""The command line: arguments, wiring and exit codes. 64 is wrong usage, so that 2 always means critical."""

from __future__ import annotations

import argparse
import errno
import io
import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from kvwatch import __version__
from kvwatch.address import parse_listen
from kvwatch.catalogue import as_json, page_of, table
from kvwatch.config import Config, ConfigError, Overrides, from_environment, load, load_file, overlaid, target_from_url
from kvwatch.recording import UnreadableError
from kvwatch.rules import RULES, active, names
from kvwatch.sizing import token_sizes
from kvwatch.units import parse_duration
from kvwatch.wording import printable

WRONG_USAGE = 64
UNUSABLE = 3
NOT_WRITTEN = 74
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO})


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line and exits with 64."""

    def error(self, message: str) -> NoReturn:
        """Refuse the arguments."""
        print(f"{self.prog}: {printable(message)}; see {self.prog} --help", file=sys.stderr)
        raise SystemExit(WRONG_USAGE)


class UsageError(Exception):
    """Arguments that are each fine but not together."""


def _duration(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _positive(text: str) -> float:
    seconds = _duration(text)
    if seconds <= 0:
        raise argparse.ArgumentTypeError(f"'{text}' is not more than 0")
    return seconds


def _beginning(text: str) -> str:
    """The address of a runbook, fit to have a rule's id behind it, in a template of Prometheus and in JSON."""
    if not re.fullmatch(r"""https?://[^\s"'`{}<>\\]+[/#=]""", text):
        raise argparse.ArgumentTypeError(f"'{text}' is no URL that ends before the id, as https://wiki.example/kv.md# does")
    return text


def build_parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    parser = _Parser(prog="kvwatch", description="Says why time to first token collapsed: the KV cache tiers of vLLM, SGLang and LMCache.")
    parser.add_argument("--version", action="version", version=f"kvwatch {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, parser_class=_Parser, metavar="COMMAND")

    serve = commands.add_parser("serve", help="watch engines and answer /metrics, /diagnose and the page")
    serve.add_argument("--config", type=Path, help="configuration file (YAML)")
    serve.add_argument("--target", action="append", default=[], metavar="URL", help="an engine to watch; may be repeated")
    serve.add_argument("--listen", metavar="HOST:PORT", help="where to answer; default [::]:9477")
    serve.set_defaults(run=_serve)

    diagnose = commands.add_parser("diagnose", help="judge URLs, exposition files or a recording, and exit by the verdict")
    diagnose.add_argument("sources", nargs="+", metavar="SOURCE", help="URLs, .prom files in time order, or a metrics.jsonl.gz")
    diagnose.add_argument("--config", type=Path, help="configuration file (YAML)")
    diagnose.add_argument("--interval", type=_positive, metavar="SECONDS", help="between scrapes: 5 for URLs, 15 for files unless said")
    diagnose.add_argument(
        "--for", dest="seconds", type=_duration, metavar="SECONDS", help="how long URLs are watched; default 75, 0 is one scrape"
    )
    diagnose.add_argument("--timeline", action="store_true", help="print the verdict after every sample, in text whenever it changes")
    diagnose.add_argument("--output", choices=("text", "json"), default="text")
    diagnose.set_defaults(run=_diagnose)

    capacity = commands.add_parser("capacity", help="how many tokens and sequences a KV pool holds")
    _capacity_arguments(capacity)

    demo = commands.add_parser("demo", help="two engines in trouble, replayed, and kvwatch watching them; needs no GPU")
    demo.add_argument("--for", dest="seconds", type=_positive, metavar="SECONDS", help="end after that time; else by Ctrl-C")
    demo.add_argument("--listen", metavar="HOST:PORT", help="where to answer; default 127.0.0.1:9477, or any free port")
    demo.add_argument("--skip", type=_duration, default=0.0, metavar="SECONDS", help="begin so far into the incidents")
    demo.set_defaults(run=_demo)

    rules = commands.add_parser("rules", help="list all findings with severity, hold and thresholds")
    rules.add_argument("--config", type=Path, help="show the thresholds of this configuration")
    rules.add_argument("--output", choices=("text", "json"), default="text")
    rules.set_defaults(run=_rules)

    explain = commands.add_parser("explain", help="print a finding's page of the runbook")
    explain.add_argument("rule", metavar="RULE")
    explain.set_defaults(run=_explain)

    render = commands.add_parser("render", help="write alerts, Alertmanager configuration, runbook, dashboards and tables")
    render.add_argument("what", nargs="?", default="all", help="alerts, alertmanager, runbook, dashboards, readme, or all (default)")
    render.add_argument("--check", action="store_true", help="write nothing; exit 1 when a file says something else")
    render.add_argument("--config", type=Path, help="render with the thresholds and holds of this configuration")
    render.add_argument("--output", type=Path, default=Path(), metavar="DIR", help="folder to write below; default the current one")
    render.add_argument("--runbook-url", type=_beginning, metavar="URL", help="where the runbook is; a rule's id is put behind it")
    render.set_defaults(run=_render)

    check = commands.add_parser("check-config", help="say what is wrong in a configuration file, and where")
    check.add_argument("file", type=Path, metavar="FILE")
    check.set_defaults(run=_check_config)
    return parser


def _capacity_arguments(parser: argparse.ArgumentParser) -> None:
    from kvwatch.capacity import cli  # noqa: PLC0415  only this command needs it

    cli.add_arguments(parser)
    parser.set_defaults(run=cli.run)


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


def _serve(args: argparse.Namespace) -> int:
    # Until the daemon handles them: SIGTERM means nothing to the first process of a container, and SIGHUP would be its end.
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(0))
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    from kvwatch.daemon import run  # noqa: PLC0415  the web stack is heavy and only this command needs it
    from kvwatch.web.server import ListenError  # noqa: PLC0415

    given = _overrides(args.config, args.target, args.listen)

    def load_again() -> Config:
        return _load_sized(given, need_urls=True)

    try:
        return run(load_again(), load_again)
    except ListenError as error:
        print(f"kvwatch serve: {error}", file=sys.stderr)
        return 1


def _diagnose(args: argparse.Namespace) -> int:
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


def _demo(args: argparse.Namespace) -> int:
    from kvwatch import demo  # noqa: PLC0415
    from kvwatch.web.server import ListenError  # noqa: PLC0415

    try:
        return demo.run(args.seconds, _overrides(None, listen=args.listen).listen, args.skip, sys.stdout)
    except ListenError as error:
        print(f"kvwatch demo: {error}", file=sys.stderr)
        return 1


def _rules(args: argparse.Namespace) -> int:
    wanted = active(_load(_overrides(args.config)).thresholds)
    print(json.dumps(as_json(wanted), indent=1) if args.output == "json" else table(wanted).rstrip("\n"))
    return 0


def _explain(args: argparse.Namespace) -> int:
    page = page_of(args.rule)
    if page is None:
        raise UsageError(f"no rule is called '{args.rule}'; there are {', '.join(RULES)}")
    print(page.rstrip("\n"))
    return 0


def _render(args: argparse.Namespace) -> int:
    from kvwatch.render import RENDERERS, RUNBOOK_URL, MissingExtraError, Site, drifted, render, write  # noqa: PLC0415  only this command needs them

    if args.what not in {"all", *RENDERERS}:
        raise UsageError(f"'{args.what}' cannot be rendered; there are all, {', '.join(RENDERERS)}")
    wanted = list(RENDERERS) if args.what == "all" else [args.what]
    config = _load(_overrides(args.config))
    site = Site(active(config.thresholds), args.output, args.runbook_url or RUNBOOK_URL, config.window)
    try:
        texts = render(wanted, site)
        stale = drifted(texts, args.output)
        if not args.check:
            write({path: texts[path] for path in stale}, args.output)
            return 0
    except MissingExtraError as error:
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


def _check_config(args: argparse.Namespace) -> int:
    config = load_file(str(args.file), names(), need_urls=True)
    named = dict.fromkeys(path for t in config.targets for path in (t.model_config, t.bearer_token_file, t.tls.ca_file) if path is not None)
    elsewhere = [path for path in named if not os.access(path, os.R_OK)]
    for target in config.targets:
        if target.model_config not in elsewhere:
            token_sizes(target.model_config)
    but = f"; cannot be read here: {', '.join(elsewhere)}" if elsewhere else ""
    print(f"{args.file}: fine, {len(config.targets)} target{'s' if len(config.targets) != 1 else ''}{but}")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. An interrupt is for the caller."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # what an engine or a file's name says can always be printed
    args = build_parser().parse_args(argv)
    try:
        code = _run(args)
        if sys.stdout is not None:  # it is when the shell closed it
            sys.stdout.flush()
    except BrokenPipeError:
        _write_no_more()
        code = 0
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        _write_no_more()
        print(f"kvwatch {args.command}: cannot write ({error.strerror}): make room, or write elsewhere", file=sys.stderr)
        code = NOT_WRITTEN
    return code


def _run(args: argparse.Namespace) -> int:
    """Run the command; what its user got wrong becomes a line and an exit code."""
    run: Callable[[argparse.Namespace], int] = args.run
    try:
        return run(args)
    except ConfigError as error:
        for line in error.lines:
            print(printable(line), file=sys.stderr)
        return WRONG_USAGE
    except UsageError as error:
        print(f"kvwatch {args.command}: {printable(str(error))}", file=sys.stderr)
        return WRONG_USAGE
    except UnreadableError as error:
        print(f"kvwatch {args.command}: {printable(str(error))}", file=sys.stderr)
        return UNUSABLE


def _write_no_more() -> None:
    """What is still buffered goes nowhere, else the interpreter would try once more at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
