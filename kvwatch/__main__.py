"""Where the program starts. What it needs takes half a second to load, in which Ctrl-C must be as quiet as later."""

from __future__ import annotations

import sys

INTERRUPTED = 130


def main() -> int:
    """Run the command that was asked for and return its exit code."""
    try:
        from kvwatch.command_line import main as run  # noqa: PLC0415  the load is what may be interrupted

        return run()
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
