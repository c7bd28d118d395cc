"""The list of queues: what waits where, since when, and what is paused."""

from starlette.responses import Response

from payonce.console.page import Page, Visit, get
from payonce.console.reading import depths


async def list_queues(visit: Visit) -> Response:
    return visit.page("queues.html", "Queues", depths=await depths(visit.desk.admin))


PAGE = Page("Queues", "/queues", (get("/queues", list_queues),), group="Work", badge="parked")
