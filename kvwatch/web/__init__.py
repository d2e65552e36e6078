"""The HTTP side of the daemon: pages for Prometheus, for scripts and for people, all answered from memory."""
