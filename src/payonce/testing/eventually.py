"""Bounded waiting for other processes."""

import asyncio
import inspect
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar, overload

POLL_S: Final = 0.01
DEFAULT_WITHIN_S: Final = 30.0
"""Generous: it only bounds a hang, and a busy machine may pause for seconds."""

Answer = TypeVar("Answer")


@overload
async def eventually(
    condition: Callable[[], Coroutine[Any, Any, Answer]], within_s: float = ..., what: str = ...
) -> Answer: ...


@overload
async def eventually(condition: Callable[[], Answer], within_s: float = ..., what: str = ...) -> Answer: ...


async def eventually(condition: Callable[[], Any], within_s: float = DEFAULT_WITHIN_S, what: str = "") -> Any:
    """Polls the condition until its result is truthy and returns that. Raises AssertionError after `within_s`."""
    deadline = time.monotonic() + within_s
    while True:
        answer = condition()
        if inspect.isawaitable(answer):
            answer = await answer
        if answer:
            return answer
        if time.monotonic() > deadline:
            name = what or getattr(condition, "__qualname__", "the condition")
            raise AssertionError(f"{name} did not hold within {within_s:g} s; last answer: {answer!r}")
        await asyncio.sleep(POLL_S)
