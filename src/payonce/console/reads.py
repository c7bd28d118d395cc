"""Reads of a page with a time limit."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import asyncpg

from payonce.console.page import Visit
from payonce.kit.outcomes import Invalid

QUERY_LIMIT_MS: Final = 5_000


@asynccontextmanager
async def bounded(visit: Visit) -> AsyncIterator[Any]:
    """A connection for reading.

    Not every filter has an index, and a busy service writes much in a year: a query that exceeds QUERY_LIMIT_MS is
    cancelled and raises Invalid, which says how to narrow it.
    """
    async with visit.context.database.work.acquire() as connection, connection.transaction(readonly=True):
        await connection.execute(f"set local statement_timeout = {QUERY_LIMIT_MS}")
        try:
            yield connection
        except asyncpg.QueryCanceledError:
            raise Invalid(
                f"the search took more than {QUERY_LIMIT_MS // 1_000} s and was cancelled; give an id or a shorter time"
            ) from None
