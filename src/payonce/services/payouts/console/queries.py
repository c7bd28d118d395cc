"""How the pages of payouts read: within a bound of time, and with a sentence where payouts have no tables."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import asyncpg
from starlette.exceptions import HTTPException
from starlette.responses import Response

from payonce.console.page import Handler, Visit
from payonce.kit.outcomes import Invalid
from payonce.services.payouts.model import Payout
from payonce.services.payouts.store import queries
from payonce.services.payouts.store.queries import Wanted

LOOK_LIMIT_MS: Final = 5_000
ID_MAX_LENGTH: Final = 100
ABSENT: Final = "this database has no payouts; the first process that runs them makes their tables"


def where_installed(title: str, handler: Handler) -> Handler:
    """A page that says so where there are no payouts, and a form that is refused there."""

    async def endpoint(visit: Visit) -> Response:
        if await queries.is_installed(visit.desk.read):
            return await handler(visit)
        if visit.request.method == "POST":
            raise Invalid(ABSENT)
        return visit.page("payouts_absent.html", title)

    return endpoint


@asynccontextmanager
async def bounded(visit: Visit) -> AsyncIterator[Any]:
    """Not every filter has an index, and a year of payouts is long: what reads too much is broken off."""
    async with visit.desk.database.work.acquire() as connection, connection.transaction(readonly=True):
        await connection.execute(f"set local statement_timeout = {LOOK_LIMIT_MS}")
        try:
            yield connection
        except asyncpg.QueryCanceledError:
            raise Invalid(
                f"looking for this took more than {LOOK_LIMIT_MS // 1_000} s and was broken off; give an id, or narrow "
                "the time"
            ) from None


async def payout_of(visit: Visit) -> Payout:
    """The one that the address names, by any of its names."""
    given = str(visit.path["id"])
    found = await queries.listed(visit.desk.read, Wanted(reference=given), None, 1) if _may_be(given) else []
    if not found:
        raise HTTPException(404, f"there is no payout {given[:ID_MAX_LENGTH]!r}; find it in the list of payouts")
    return found[0]


def _may_be(given: str) -> bool:
    return len(given) <= ID_MAX_LENGTH and given.isprintable()
