"""Reads of a page within a bound of time."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import asyncpg

from payonce.console.page import Visit
from payonce.kit.outcomes import Invalid

LOOK_LIMIT_MS: Final = 5_000


@asynccontextmanager
async def bounded(visit: Visit) -> AsyncIterator[Any]:
    """A connection for reading. Not every filter has an index, and a year of a busy service is long: a query that takes
    too long ends, and the page says how to narrow it."""
    async with visit.context.database.work.acquire() as connection, connection.transaction(readonly=True):
        await connection.execute(f"set local statement_timeout = {LOOK_LIMIT_MS}")
        try:
            yield connection
        except asyncpg.QueryCanceledError:
            raise Invalid(
                f"looking for this took more than {LOOK_LIMIT_MS // 1_000} s and was broken off; give an id, or narrow "
                "the time"
            ) from None
