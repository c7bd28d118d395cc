"""Bounded waiting: it returns the result, and fails with the last one it saw."""

from collections.abc import Iterator

import pytest

from payonce.testing import eventually


def counting() -> Iterator[int]:
    return iter(range(10))


async def test_the_first_true_answer_is_returned() -> None:
    numbers = counting()
    assert await eventually(lambda: next(numbers)) == 1


async def test_an_async_condition_is_awaited() -> None:
    numbers = counting()

    async def third() -> bool:
        return next(numbers) == 3

    assert await eventually(third) is True


async def test_a_condition_that_never_holds_fails_with_its_last_answer() -> None:
    with pytest.raises(AssertionError, match=r"the queue is empty did not hold within 0.03 s; last answer: \[\]"):
        await eventually(list, within_s=0.03, what="the queue is empty")
