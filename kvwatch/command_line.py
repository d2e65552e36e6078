"""The command line: arguments and exit codes. 64 is wrong usage, so that 2 always means critical."""

from __future__ import annotations

import argparse
import io
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from kvwatch import __version__, commands
from kvwatch.address import ListenError
from kvwatch.capacity import cli as capacity_cli
from kvwatch.commands import NO_ROOM, UsageError
from kvwatch.config import ConfigError
from kvwatch.recording import UnreadableError
from kvwatch.units import parse_duration
from kvwatch.wording import printable

WRONG_USAGE = 64
UNUSABLE = 3
NOT_SERVED = 1
NOT_WRITTEN = 74


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line and exits with 64."""

    def error(self, message: str) -> NoReturn:
        """Refuse the arguments."""
        print(f"{self.prog}: {printable(message)}; see {self.prog} --help", file=sys.stderr)
        raise SystemExit(WRONG_USAGE)


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
    command = parser.add_subparsers(dest="command", required=True, parser_class=_Parser, metavar="COMMAND").add_parser

    serve = command("serve", help="watch engines and answer /metrics, /diagnose and the page")
    serve.add_argument("--config", type=Path, help="configuration file (YAML)")
    serve.add_argument("--target", action="append", default=[], metavar="URL", help="an engine to watch; may be repeated")
    serve.add_argument("--listen", metavar="HOST:PORT", help="where to answer; default [::]:9477")
    serve.set_defaults(run=commands.serve)

    diagnose = command("diagnose", help="judge URLs, exposition files or a recording, and exit by the verdict")
    diagnose.add_argument("sources", nargs="+", metavar="SOURCE", help="URLs, exposition files in time order, or a recording")
    diagnose.add_argument("--config", type=Path, help="configuration file (YAML)")
    diagnose.add_argument("--interval", type=_positive, metavar="SECONDS", help="between scrapes: 5 for URLs, 15 for files unless said")
    diagnose.add_argument(
        "--for", dest="seconds", type=_duration, metavar="SECONDS", help="how long URLs are watched; default 75, 0 is one scrape"
    )
    diagnose.add_argument("--timeline", action="store_true", help="print the verdict after every sample, in text whenever it changes")
    diagnose.add_argument("--output", choices=("text", "json"), default="text")
    diagnose.set_defaults(run=commands.diagnose)

    capacity = command("capacity", help="how many tokens and sequences a KV pool holds")
    capacity_cli.add_arguments(capacity)
    capacity.set_defaults(run=capacity_cli.run)

    demo = command("demo", help="two engines in trouble, replayed, and kvwatch watching them; needs no GPU")
    demo.add_argument("--for", dest="seconds", type=_positive, metavar="SECONDS", help="end after that time; else by Ctrl-C")
    demo.add_argument("--listen", metavar="HOST:PORT", help="where to answer; default 127.0.0.1:9477, or any free port")
    demo.add_argument("--skip", type=_duration, default=0.0, metavar="SECONDS", help="begin so far into the incidents")
    demo.set_defaults(run=commands.demo)

    rules = command("rules", help="list all findings with severity, hold and thresholds")
    rules.add_argument("--config", type=Path, help="show the thresholds of this configuration")
    rules.add_argument("--output", choices=("text", "json"), default="text")
    rules.set_defaults(run=commands.rules)

    explain = command("explain", help="print a finding's page of the runbook")
    explain.add_argument("rule", metavar="RULE")
    explain.set_defaults(run=commands.explain)

    render = command("render", help="write alerts, Alertmanager configuration, runbook, dashboards and tables")
    render.add_argument("what", nargs="?", default="all", help="alerts, alertmanager, runbook, dashboards, readme, or all (default)")
    render.add_argument("--check", action="store_true", help="write nothing; exit 1 when a file says something else")
    render.add_argument("--config", type=Path, help="render with the thresholds and holds of this configuration")
    render.add_argument("--output", type=Path, default=Path(), metavar="DIR", help="folder to write below; default the current one")
    render.add_argument("--runbook-url", type=_beginning, metavar="URL", help="where the runbook is; a rule's id is put behind it")
    render.set_defaults(run=commands.render)

    check = command("check-config", help="say what is wrong in a configuration file, and where")
    check.add_argument("file", type=Path, metavar="FILE")
    check.set_defaults(run=commands.check_config)
    return parser


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
    except ListenError as error:
        print(f"kvwatch {args.command}: {printable(str(error))}", file=sys.stderr)
        return NOT_SERVED


def _write_no_more() -> None:
    """What is still buffered goes nowhere, else the interpreter would try once more at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
