"""Where the program starts. What it needs takes half a second to load, in which Ctrl-C must be as quiet as later."""

from __future__ import annotations

import signal
import sys

INTERRUPTED = 130
TERMINATED = 143


def main() -> int:
    """Run the command that was asked for and return its exit code."""
    # The first process of a container gets no signal that it does not handle; who serves has a handler of its own.
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(TERMINATED))
    try:
        from kvwatch.command_line import main as run  # noqa: PLC0415  the load is what may be interrupted

        return run()
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
