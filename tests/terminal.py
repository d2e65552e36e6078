"""A command on a terminal of its own."""

from __future__ import annotations

import os
import pty
import subprocess
import termios
from collections.abc import Sequence
from pathlib import Path


def on_a_terminal(command: Sequence[str], folder: Path, columns: int) -> tuple[int, str]:
    """Run a command in a folder, on a terminal so many columns wide; its exit code and all that it shows."""
    ours, its = pty.openpty()
    termios.tcsetwinsize(its, (24, columns))
    environment = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES"}}
    with subprocess.Popen(command, cwd=folder, env=environment, stdin=its, stdout=its, stderr=its) as running:
        os.close(its)
        shown = b"".join(iter(lambda: _read(ours), b""))
    os.close(ours)
    return running.returncode, shown.decode().replace("\r\n", "\n")


def _read(terminal: int) -> bytes:
    """What comes next; nothing when nobody has the other side open, which Linux calls an error."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""
