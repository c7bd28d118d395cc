"""The first page: is everything well, and if not, where."""

from starlette.responses import Response

from payonce.console.page import Page, Visit, get
from payonce.console.reading import depths


async def overview(visit: Visit) -> Response:
    return visit.page("overview.html", "Overview", depths=await depths(visit.desk.admin))


PAGE = Page("Overview", "/", (get("/", overview),), group="Now")
