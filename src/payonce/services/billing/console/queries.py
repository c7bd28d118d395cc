"""Reads of billing's pages, with a message where a service has no tables in this database."""

from typing import Final

from starlette.exceptions import HTTPException
from starlette.responses import Response

from payonce.console.page import Handler, Visit
from payonce.kit.outcomes import Invalid
from payonce.services.billing.payments.store import queries
from payonce.services.billing.subscriptions.store import queries as subscription_queries

ID_MAX_LENGTH: Final = 200
SUBSCRIPTIONS, PAYMENTS = "billing.subscriptions", "billing.payments"
INSTALLED: Final = {SUBSCRIPTIONS: subscription_queries.is_installed, PAYMENTS: queries.is_installed}
ELSEWHERE: Final = "{role} has a database of its own; use the console of a process that runs it"
ABSENT: Final = "this database has no billing tables; the first process that runs billing creates them"


def page_of(title: str, handler: Handler, role: str = SUBSCRIPTIONS) -> Handler:
    """A page of one billing service. If its tables are in another database or not created yet, the page says so, and
    forms are rejected."""

    async def endpoint(visit: Visit) -> Response:
        if await has(visit, role):
            return await handler(visit)
        held = visit.context.holds(role)
        if visit.request.method == "POST":
            raise Invalid(ABSENT if held else ELSEWHERE.format(role=role))
        return visit.page("billing/absent.html", title, elsewhere=None if held else role)

    return endpoint


async def has(visit: Visit, role: str) -> bool:
    """Whether a page can show something of the other service."""
    return visit.context.holds(role) and await INSTALLED[role](visit.context.read)


def id_from(visit: Visit, what: str) -> str:
    """The id in the URL; raises 404 for one that no object can have."""
    given = str(visit.path["id"])
    if len(given) > ID_MAX_LENGTH or not given.isprintable():
        raise not_found(what, given)
    return given


def not_found(what: str, given: str) -> HTTPException:
    return HTTPException(404, f"there is no {what} {given[:ID_MAX_LENGTH]!r}; find it in the list")
