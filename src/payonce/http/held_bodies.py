"""Limits the memory that request bodies use in this process.

A body is read before the key is checked, so anybody can send one on every connection.
"""

from http import HTTPStatus
from types import TracebackType
from typing import Final, Self

from payonce.http.kit.problems import RETRY_AFTER_S, Problem

HELD_MAX_BYTES: Final = 64 * 1024 * 1024
"""Of all bodies being received or processed."""
SMALL_BYTES: Final = 16 * 1024
"""The first bytes of each body do not count, so that large bodies cannot exclude ordinary requests. The limit of
connections bounds these bytes."""


class HeldBodies:
    def __init__(self, most_bytes: int = HELD_MAX_BYTES, small_bytes: int = SMALL_BYTES) -> None:
        self.most_bytes = most_bytes
        self.small_bytes = small_bytes
        self.bytes = 0


class HeldBody:
    """The memory of one body, from its first byte until its request is answered."""

    def __init__(self, bodies: HeldBodies) -> None:
        self._bodies = bodies
        self._bytes = 0

    def grow(self, length: int) -> None:
        """Records the current length. Raises Problem if the process holds too much; the rest must then not be read."""
        more = max(0, length - self._bodies.small_bytes) - self._bytes
        if more > 0 and self._bodies.bytes + more > self._bodies.most_bytes:
            raise Problem(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "the server is receiving too many large bodies; try again later",
                headers={"Retry-After": str(RETRY_AFTER_S), "Connection": "close"},
            )
        self._bodies.bytes += more
        self._bytes += more

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bodies.bytes -= self._bytes
        self._bytes = 0


OF_THIS_PROCESS: Final = HeldBodies()
