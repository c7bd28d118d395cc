"""How the pages of payouts read, with a sentence where payouts have no tables."""

from typing import Final

from starlette.exceptions import HTTPException
from starlette.responses import Response

from payonce.console.page import Handler, Visit
from payonce.kit.outcomes import Invalid
from payonce.services.payouts.model import Payout
from payonce.services.payouts.store import queries
from payonce.services.payouts.store.queries import PayoutFilter

ID_MAX_LENGTH: Final = 100
ABSENT: Final = "this database has no payouts; the first process that runs them makes their tables"


def if_installed(title: str, handler: Handler) -> Handler:
    """A page that says so where there are no payouts, and a form that is refused there."""

    async def endpoint(visit: Visit) -> Response:
        if await queries.is_installed(visit.context.read):
            return await handler(visit)
        if visit.request.method == "POST":
            raise Invalid(ABSENT)
        return visit.page("payouts/absent.html", title)

    return endpoint


async def payout_of(visit: Visit) -> Payout:
    """The one that the address names, by any of its names."""
    given = str(visit.path["id"])
    found = (
        await queries.list_payouts(visit.context.read, PayoutFilter(reference=given), None, 1) if _may_be(given) else []
    )
    if not found:
        raise HTTPException(404, f"there is no payout {given[:ID_MAX_LENGTH]!r}; find it in the list of payouts")
    return found[0]


def _may_be(given: str) -> bool:
    return len(given) <= ID_MAX_LENGTH and given.isprintable()
