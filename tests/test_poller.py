"""The poller: a defect costs one target, and is counted."""

from __future__ import annotations

import queue
import socket
import threading

from kvwatch.model import Target
from kvwatch.poller import Poller, Scraper
from kvwatch.quantity import Interval
from kvwatch.rules.kinds import ActiveRule, Rule
from kvwatch.scrape import Client
from kvwatch.signals.kinds import Signal
from kvwatch.store import Store
from kvwatch.view import View, Watch
from tests.loopback import request, server

BODY = b"vllm:num_requests_running 1\nvllm:num_requests_waiting 0\n"
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY)


def test_a_defect_in_judging_is_counted_and_the_target_is_scraped_again() -> None:
    """A rule that cannot be judged costs its target the turn, not the thread: the next turn comes, and a snapshot can be taken."""
    asked: queue.Queue[bytes] = queue.Queue()

    def answer(connection: socket.socket, _stop: threading.Event) -> None:
        while head := request(connection):
            if b"GET /metrics" in head:
                asked.put(head)
                connection.sendall(ANSWER)
            else:
                connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")

    def broken(view: View) -> Interval:
        raise ZeroDivisionError(view.now)

    rule = Rule("broken", "info", 0, (Signal("broken", "count", "nothing", broken) > 0,), "t", (), (), "p")
    with server(answer) as port:
        target = Target("t", f"http://127.0.0.1:{port}/metrics")
        store = Store([target], Watch(interval=1.0), [ActiveRule(rule, {})])
        poller = Poller(store)
        poller.start([Scraper(target, Client(target, limit_bytes=1 << 20), 5.0)], 1.0)
        try:
            for _ in range(2):
                asked.get(timeout=20)
        finally:
            poller.stop()
        seen = store.snapshot(0.0)
    assert seen.targets[0].failures == {"bug": 1}
    assert seen.owners == ()
