"""Time-ordered ids (UUID version 7): new rows land at the end of an index, and ids sort by birth."""

import os
import time
from typing import Final
from uuid import UUID

from asyncpg.pgproto import pgproto

_RANDOM_BITS: Final = 74

_millisecond = 0
_tail = 0
_steps: list[int] = []


def new_id() -> UUID:
    """Milliseconds, then 74 random bits that grow by a random step within one millisecond (RFC 9562, method 2)."""
    global _millisecond, _tail
    now = time.time_ns() // 1_000_000
    if not _steps:
        # One system call serves hundreds of ids.
        _steps.extend(memoryview(os.urandom(4096)).cast("I"))
    if now > _millisecond:
        _millisecond = now
        # The top bit stays clear: room to grow.
        _tail = int.from_bytes(os.urandom(10), "big") >> 7
    else:
        _tail += 1 + _steps.pop()
        if _tail >> _RANDOM_BITS:
            _millisecond, _tail = _millisecond + 1, _steps.pop()
    high, low = _tail >> 62, _tail & 0x3FFF_FFFF_FFFF_FFFF
    number = _millisecond << 80 | 0x7000 << 64 | high << 64 | 0x8000_0000_0000_0000 | low
    # The database driver's UUID is a uuid.UUID in every respect, and takes a fifth of the time to make and to send.
    return pgproto.UUID(number.to_bytes(16, "big"))


def _forget_after_fork() -> None:
    """Two processes must not draw from one store of randomness."""
    global _millisecond, _tail
    _millisecond, _tail = 0, 0
    _steps.clear()


os.register_at_fork(after_in_child=_forget_after_fork)
