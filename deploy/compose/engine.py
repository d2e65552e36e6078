"""Stands in for an engine where there is no GPU: ``engine.py NAME PORT`` answers as one of the demo's recordings, over and over."""
# ruff: noqa: INP001  a script

import signal
import sys
import time
from importlib.resources import as_file, files

from kvwatch.demo import PAUSE_SECONDS
from kvwatch.demo.replay import Tape, read_incident, replaying

name, port = sys.argv[1:]
with as_file(files("kvwatch.demo") / "recordings" / name) as folder:
    incident = read_incident(folder)
tape = Tape(time.monotonic(), 0.0, incident.seconds + PAUSE_SECONDS)
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
with replaying(incident, tape, ("", int(port))) as url:
    print(f"{name} answers at {url}", flush=True)  # noqa: T201  the container's log
    signal.pause()
