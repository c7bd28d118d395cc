"""payonce's roles as measured processes, with a temporary database."""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Final

from bench.failure import BenchFailed
from payonce.kit.http import HttpClient
from payonce.kit.outcomes import NotSent, Unknown
from payonce.testing.processes import Child

START_S: Final = 60.0
LOOK_S: Final = 0.1

Lend = Callable[[], AbstractAsyncContextManager[str]]
"""Provides an empty, migrated database for one measurement."""


async def until_up(url: str, children: Mapping[str, Child]) -> None:
    """Returns when the process at `url` is ready to work."""
    deadline = time.monotonic() + START_S
    async with HttpClient("payonce", url, allow_private=True) as http:
        while True:
            try:
                if (await http.request("GET", "/readyz")).status == 200:
                    return
            except (NotSent, Unknown):
                pass
            for name, child in children.items():
                if not child.running:
                    raise BenchFailed(f"{name} ended unexpectedly: {child.last_lines()}")
            if time.monotonic() > deadline:
                raise BenchFailed(f"the roles did not answer within {START_S:g} s")
            await asyncio.sleep(LOOK_S)
