"""Ports of this host: free ones, and those at which a server will listen."""

import socket
from collections.abc import Sequence
from contextlib import ExitStack, closing
from time import monotonic, sleep


def free_port() -> int:
    """A port that nobody listens at."""
    (port,) = free_ports(1)
    return port


def free_ports(count: int) -> Sequence[int]:
    """So many of them, each another one."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def await_port(port: int, seconds: float) -> None:
    """Return once somebody listens there.

    Raises:
        TimeoutError: nobody does for so long.
    """
    end = monotonic() + seconds
    while True:
        with closing(socket.socket()) as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        if monotonic() > end:
            raise TimeoutError(f"nobody listens at port {port}")
        sleep(0.1)
