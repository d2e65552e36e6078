"""vLLM's KV events: what the prefix cache really holds, which no metric says.

``/metrics`` counts cached blocks nobody uses as free (``get_usage`` in vllm/v1/core/block_pool.py). The event stream names every
block that enters and leaves the prefix cache, so the number of hashed blocks is known, and with it what is evictable.

Frames become messages in order (``sequence``), those become values (``decode``, ``batch``), those a count (``ledger``; ``track`` is all
three), and with the gauges of the scrapes so far (``memory``) that becomes ``estimate``. All of it is pure. ``subscribe`` is the shell
with sockets and a thread, ``replay`` reads a recording instead. ``decode``, ``track``, ``subscribe`` and ``replay`` need the extra
``events`` (pyzmq, msgspec).
"""
