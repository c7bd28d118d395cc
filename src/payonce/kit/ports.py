"""Ports for processes that must be told theirs before they start."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager


@contextmanager
def held_ports(count: int) -> Iterator[list[int]]:
    """Free ones, which stay so: while a port is held the system gives it to nobody who asks for any, and whoever asks
    for just that one gets it, as servers do that may reuse an address. A port that was only found free may be
    somebody's end of a connection by the time at which a process listens."""
    with ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in held:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            each.bind(("127.0.0.1", 0))
        yield [each.getsockname()[1] for each in held]
