"""Reads that the pages of payouts share, and their answer in a database without payouts."""

from typing import Final

from starlette.exceptions import HTTPException
from starlette.responses import Response

from payonce.console.page import Handler, Visit
from payonce.kit.outcomes import Invalid
from payonce.services.payouts.model import Payout
from payonce.services.payouts.store import queries
from payonce.services.payouts.store.queries import PayoutFilter

ID_MAX_LENGTH: Final = 100
ABSENT: Final = "this database has no payouts; the first process that runs payouts creates their tables"


def if_installed(title: str, handler: Handler) -> Handler:
    """In a database without payouts, shows a page that says so, and refuses forms."""

    async def endpoint(visit: Visit) -> Response:
        if await queries.is_installed(visit.context.read):
            return await handler(visit)
        if visit.request.method == "POST":
            raise Invalid(ABSENT)
        return visit.page("payouts/absent.html", title)

    return endpoint


async def payout_of(visit: Visit) -> Payout:
    """The payout of the URL, by any of its identifiers; raises 404."""
    given = str(visit.path["id"])
    found = (
        await queries.list_payouts(visit.context.read, PayoutFilter(reference=given), None, 1) if _may_be(given) else []
    )
    if not found:
        raise HTTPException(404, f"there is no payout {given[:ID_MAX_LENGTH]!r}; look it up in the list of payouts")
    return found[0]


def _may_be(given: str) -> bool:
    return len(given) <= ID_MAX_LENGTH and given.isprintable()
