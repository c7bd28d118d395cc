"""Vendor health: latency, failures, rate budgets and paused queues."""

from starlette.responses import Response

from payonce.console.page import Page, Visit, get
from payonce.engine.messages.declarations import queue_declaration
from payonce.engine.monitoring.vendor_calls import vendor_calls
from payonce.engine.monitoring.vendor_health import attempt_stats, budgets, call_stats


async def show_vendors(visit: Visit) -> Response:
    read = visit.context.read
    paused = [
        (depth.queue, await queue_declaration(read, depth.queue)) for depth in visit.summary.depths if depth.paused
    ]
    loaded = [(each, await each.load(visit)) for each in visit.site.vendor_sections]
    return visit.page(
        "vendors.html",
        "Vendors",
        recent=await vendor_calls(read),
        tries=await attempt_stats(read),
        calls=call_stats(),
        budgets=await budgets(read),
        paused=paused,
        sections=[(each, found) for each, found in loaded if found is not None],
    )


PAGE = Page("Vendors", "/vendors", (get("/vendors", show_vendors),), group="Work", badge="vendors")
