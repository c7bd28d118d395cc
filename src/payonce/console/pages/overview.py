"""The first page: is everything well, and if not, where; how much runs, and how much money moves."""

from starlette.responses import Response

from payonce.console.forms import choice_of
from payonce.console.live import WINDOWS, columns
from payonce.console.page import Page, Visit, get
from payonce.engine.history import history, runs_by_queue
from payonce.services.payouts.looking import waiting_for_people


async def overview(visit: Visit) -> Response:
    window = choice_of(visit.asked, "window", tuple(WINDOWS), "1h")
    read = visit.desk.read
    return visit.page(
        "overview.html",
        "Overview",
        window=window,
        windows=tuple(WINDOWS),
        depths=visit.glance.depths,
        chart=None if visit.renews else columns(await history(read, WINDOWS[window].minutes), WINDOWS[window].step),
        runs=await runs_by_queue(read, 60),
        meter=await visit.board.meter(),
        payouts_waiting=await waiting_for_people(read),
    )


PAGE = Page("Overview", "/", (get("/", overview),), group="Now")
