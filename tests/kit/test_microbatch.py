"""Many callers, one flush: who goes with whom, and who hears of what."""

import asyncio
from collections.abc import Sequence

import pytest

from payonce.kit.microbatch import MicroBatch


class Store:
    """Answers each number with ten times as much, once it is let."""

    def __init__(self) -> None:
        self.flushes: list[list[int]] = []
        self.begun = asyncio.Event()
        self.open = asyncio.Event()
        self.error: Exception | None = None

    async def flush(self, items: Sequence[int]) -> Sequence[int]:
        self.flushes.append(list(items))
        self.begun.set()
        await self.open.wait()
        if self.error is not None:
            raise self.error
        return [item * 10 for item in items]


async def test_what_comes_during_a_flush_goes_together_and_groups_stay_whole() -> None:
    store = Store()
    microbatch = MicroBatch(store.flush, most=4, pause_s=0.0)
    first = asyncio.create_task(microbatch.add(1))
    await store.begun.wait()
    rest = [asyncio.create_task(microbatch.add_all(each)) for each in ([2, 3], [4], [5, 6], [7, 8, 9, 10, 11], [12])]
    await asyncio.sleep(0)
    store.open.set()
    assert await first == 10
    assert await asyncio.gather(*rest) == [[20, 30], [40], [50, 60], [70, 80, 90, 100, 110], [120]]
    assert store.flushes == [[1], [2, 3, 4], [5, 6], [7, 8, 9, 10, 11], [12]]
    await microbatch.drained()


async def test_all_of_a_flush_hear_of_its_failure_and_the_next_goes_on() -> None:
    store = Store()
    store.open.set()
    store.error = ValueError("not now")
    microbatch = MicroBatch(store.flush, most=4, pause_s=0.0)
    outcomes = await asyncio.gather(microbatch.add(1), microbatch.add_all([2, 3]), return_exceptions=True)
    assert [type(each) for each in outcomes] == [ValueError, ValueError]
    store.error = None
    assert await microbatch.add(4) == 40


async def test_a_caller_who_left_does_not_disturb_the_others() -> None:
    store = Store()
    microbatch = MicroBatch(store.flush, most=4, pause_s=0.0)
    gone, stays = asyncio.create_task(microbatch.add_all([1, 2])), asyncio.create_task(microbatch.add(3))
    await store.begun.wait()
    gone.cancel()
    store.open.set()
    assert await stays == 30
    with pytest.raises(asyncio.CancelledError):
        await gone
