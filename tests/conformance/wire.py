"""The wire between payonce and its server: statements are counted, and altered to remove a safeguard."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import asyncpg

METHODS = ("execute", "executemany", "fetch", "fetchmany", "fetchrow", "fetchval", "prepare")


@contextmanager
def on_the_wire(see: Callable[[str], str]) -> Iterator[None]:
    """Passes every statement of this process to `see`, and sends what that returns."""
    originals = {name: getattr(asyncpg.Connection, name) for name in METHODS}

    def seen(original: Callable[..., Any]) -> Callable[..., Any]:
        async def method(self: Any, statement: str, *arguments: Any, **options: Any) -> Any:
            return await original(self, see(statement), *arguments, **options)

        return method

    for name, original in originals.items():
        setattr(asyncpg.Connection, name, seen(original))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(asyncpg.Connection, name, original)


@contextmanager
def without(pattern: str, replacement: str, within: str = "") -> Iterator[None]:
    """Removes a safeguard from every statement that contains it; fails if no statement did.

    Spaces in patterns stand for any white space; `within` names words that the statement must contain.
    """
    expression = re.compile(re.sub(r" +", r"\\s+", pattern))
    found = 0

    def see(statement: str) -> str:
        nonlocal found
        if within not in statement:
            return statement
        altered, count = expression.subn(replacement, statement)
        found += count
        return altered

    with on_the_wire(see):
        yield
    assert found, f"no statement holds {pattern!r} any more: the ablation takes nothing out"
