"""One payment over everything: messages, runs, effects, postings, outbox and notes, in time order."""

from starlette.responses import Response

from payonce.console.forms import name_of
from payonce.console.page import Page, Visit, get
from payonce.engine.finding import find_anywhere
from payonce.engine.story import Kind, story


async def show_trace(visit: Visit) -> Response:
    what = name_of(visit.asked, "id")
    found = None if what is None else await story(visit.desk.read, what)
    known = what is None or (found is not None and found.scenes)
    waiting = None if known else await find_anywhere(visit.desk.admin, str(what))
    title = "Trace" if what is None else f"Trace of {what}"
    return visit.page("trace.html", title, what=what, story=found, kinds=Kind, waiting=waiting)


PAGE = Page("Trace", "/trace", (get("/trace", show_trace),), group="Record")
