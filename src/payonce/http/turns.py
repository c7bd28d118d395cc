"""Starts a few requests per pass of the event loop, so that HTTP leaves time for everything else.

Lease renewals, claims and commits run in the same loop. If every waiting request started at once, they would wait for
all of them. Addresses take turns; pipelined requests start when no other request waits.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final

STARTS_PER_PASS: Final = 2
"""A request takes 0.3 to 2 ms of the loop, so a pass takes a few milliseconds under any load. uvloop accepts one
connection per pass: with more requests per pass, new connections would wait longer."""

Start = Callable[[], None]


class Turns:
    def __init__(self, per_pass: int = STARTS_PER_PASS) -> None:
        self._per_pass = per_pass
        self._lines = (_Line(), _Line())
        self._scheduled = False

    def request(self, address: str, start: Start, *, pipelined: bool) -> None:
        """`start` is called in one of the next passes of the loop."""
        self._lines[pipelined].add(address, start)
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._pass)

    def _pass(self) -> None:
        for _ in range(self._per_pass):
            start = self._lines[False].next() or self._lines[True].next()
            if start is None:
                self._scheduled = False
                return
            start()
        asyncio.get_running_loop().call_soon(self._pass)


class _Line:
    """First in, first out per address; addresses take turns."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, deque[Start]] = OrderedDict()

    def add(self, address: str, start: Start) -> None:
        self._waiting.setdefault(address, deque()).append(start)

    def next(self) -> Start | None:
        if not self._waiting:
            return None
        address, starts = self._waiting.popitem(last=False)
        start = starts.popleft()
        if starts:
            self._waiting[address] = starts
        return start
