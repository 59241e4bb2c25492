"""The address at which other hosts reach this one."""

from __future__ import annotations

import socket


def local_address_towards(host: str, port: int) -> str:
    """Returns the address of the interface on the route to a host. Nothing is sent."""
    if host in ("localhost", "0.0.0.0", ""):
        return "127.0.0.1"
    kind, _, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(kind, socket.SOCK_DGRAM) as probe:
        probe.connect(target)
        return str(probe.getsockname()[0])
