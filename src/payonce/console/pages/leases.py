"""Leases: their holders and remaining time."""

from starlette.responses import Response

from payonce.console.forms import PAGE_ROWS, name_of
from payonce.console.links import link
from payonce.console.page import Page, Visit, get
from payonce.engine.database.leases import lease_statuses


async def list_leases(visit: Visit) -> Response:
    after = name_of(visit.query, "after")
    found = await lease_statuses(visit.context.read, PAGE_ROWS + 1, after)
    page = found[:PAGE_ROWS]
    return visit.page(
        "leases.html",
        "Leases",
        rows=page,
        first=link("/leases") if after else None,
        next=link("/leases", after=page[-1].name) if len(found) > PAGE_ROWS else None,
    )


PAGE = Page("Leases", "/leases", (get("/leases", list_leases),), group="Work")
