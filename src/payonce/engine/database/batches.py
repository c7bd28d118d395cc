"""Deletions in bounded batches, so that no statement holds its locks for long."""

from collections.abc import Awaitable, Callable


async def in_batches(batch: Callable[[], Awaitable[int]], size: int, batches_max: int) -> int:
    """Repeats `batch` until it handles fewer rows than `size`, at most `batches_max` times. Returns the total."""
    total = 0
    for _ in range(batches_max):
        count = await batch()
        total += count
        if count < size:
            break
    return total
