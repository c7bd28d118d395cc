"""What is done for many in a way of its own."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from payonce.engine.database import Connection

Item = TypeVar("Item")
Result = TypeVar("Result")
Deed = Callable[[Connection, Sequence[Item]], Awaitable[Sequence[Result]]]
"""Something that is done for many in fewer statements than for each; the result of each, in order."""
