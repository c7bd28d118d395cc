"""How the pages of billing read: within a bound of time, and with a sentence where billing has no tables."""

from typing import Final

from starlette.exceptions import HTTPException
from starlette.responses import Response

from payonce.console.page import Handler, Visit
from payonce.console.pages.payouts_reading import bounded
from payonce.kit.outcomes import Invalid
from payonce.services.billing.payments import looking as at_payments
from payonce.services.billing.subscriptions import looking

__all__ = ["bounded", "id_in", "nothing_there", "where_installed"]

ID_MAX_LENGTH: Final = 200
ABSENT: Final = "this database has no billing; the first process that runs it makes its tables"


def where_installed(title: str, handler: Handler) -> Handler:
    """A page that says so where there is no billing, and a form that is refused there."""

    async def endpoint(visit: Visit) -> Response:
        read = visit.desk.read
        if await looking.is_installed(read) and await at_payments.is_installed(read):
            return await handler(visit)
        if visit.request.method == "POST":
            raise Invalid(ABSENT)
        return visit.page("billing_absent.html", title)

    return endpoint


def id_in(visit: Visit, what: str) -> str:
    """The id that the address names; one that nothing can have is not asked for."""
    given = str(visit.path["id"])
    if len(given) > ID_MAX_LENGTH or not given.isprintable():
        raise nothing_there(what, given)
    return given


def nothing_there(what: str, given: str) -> HTTPException:
    return HTTPException(404, f"there is no {what} {given[:ID_MAX_LENGTH]!r}; find it in the list")
