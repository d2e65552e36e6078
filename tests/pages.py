"""An engine on loopback that answers by path, and remembers what it was asked."""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping

from tests.loopback import request, response

NOT_FOUND = response(b"Not Found", status="404 Not Found")


def vllm(running: int = 1, waiting: int = 0, usage: float = 0.25) -> bytes:
    """A small body of vLLM with a pool of 100 blocks."""
    return (
        f'vllm:num_requests_running{{engine="0",model_name="m"}} {running}\n'
        f'vllm:num_requests_waiting{{engine="0",model_name="m"}} {waiting}\n'
        f'vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} {usage}\n'
        f'vllm:num_preemptions_total{{engine="0",model_name="m"}} 0\n'
        'vllm:cache_config_info{block_size="16",num_gpu_blocks="101",engine="0"} 1\n'
    ).encode()


def sglang(running: int = 1) -> bytes:
    """A small body of SGLang."""
    return f'sglang:num_running_reqs{{engine_type="unified"}} {running}\nsglang:num_queue_reqs{{engine_type="unified"}} 0\n'.encode()


class Pages:
    """A handler for ``loopback.server``. ``answers`` may change while it serves; ``asked`` are the paths in order.

    While ``held`` is set, ``/metrics`` is not answered. ``most`` is how many requests it ever had at once.
    """

    def __init__(self, answers: Mapping[str, bytes]) -> None:
        """Answer these bodies at these paths, everything else with 404."""
        self.answers = dict(answers)
        self.asked: list[str] = []
        self.held = threading.Event()
        self.most = 0
        self._open = 0
        self._lock = threading.Lock()

    def __call__(self, connection: socket.socket, stop: threading.Event) -> None:
        """Serve one connection."""
        while head := request(connection):
            path = head.split()[1].decode()
            with self._lock:
                self.asked.append(path)
                self._open += 1
                self.most = max(self.most, self._open)
            while self.held.is_set() and not stop.wait(0.01):
                pass
            with self._lock:
                self._open -= 1
            body = self.answers.get(path)
            connection.sendall(NOT_FOUND if body is None else response(body))

    def count(self, path: str) -> int:
        """How often a path was asked for."""
        return self.asked.count(path)
