"""Dunning: overdue subscriptions, the decline codes, and the next attempts."""

from starlette.responses import Response

from payonce.console.forms import PAGE_ROWS, choice_of, name_of
from payonce.console.links import link
from payonce.console.page import Visit
from payonce.console.reads import bounded
from payonce.services.billing.subscriptions.model import State
from payonce.services.billing.subscriptions.store import queries
from payonce.services.billing.subscriptions.store.queries import OVERDUE


async def show_dunning(visit: Visit) -> Response:
    chosen = choice_of(visit.query, "state", ("all", *OVERDUE), "all")
    after = name_of(visit.query, "after")
    state = None if chosen == "all" else State(chosen)
    async with bounded(visit) as read:
        totals = await queries.overdue_totals(read)
        found = await queries.overdue(read, state, after, PAGE_ROWS + 1)
        declines = await queries.overdue_declines(read, state)
    rows, here = found[:PAGE_ROWS], "/billing/dunning"
    return visit.page(
        "billing/dunning.html",
        "Dunning",
        rows=rows,
        chosen=chosen,
        totals=totals,
        everybody=sum(totals.values()),
        declines=declines,
        first=link(here, state=chosen) if after else None,
        next=link(here, state=chosen, after=rows[-1].subscription.id) if len(found) > PAGE_ROWS else None,
    )
