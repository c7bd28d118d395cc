"""Parked messages by queue and cause."""

from starlette.responses import Response

from payonce.console.page import Page, Visit, get
from payonce.console.waiting_causes import parked_causes


async def list_causes(visit: Visit) -> Response:
    depths = visit.summary.depths
    found = await parked_causes(visit.context, depths)
    return visit.page(
        "parked.html",
        "Parked messages",
        causes=found.found,
        read=found.read,
        parked=visit.summary.alerts.parked,
        by_queue=[depth for depth in depths if depth.parked],
    )


PAGE = Page("Parked messages", "/parked", (get("/parked", list_causes),))
