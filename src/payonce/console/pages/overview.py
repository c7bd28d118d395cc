"""The overview: alerts, throughput, amounts and queues."""

from collections.abc import Mapping, Sequence
from typing import Final

from starlette.responses import Response

from payonce.console.forms import choice_of
from payonce.console.links import link
from payonce.console.live import WINDOWS, columns
from payonce.console.page import Page, Visit, get
from payonce.engine.messages.ports import Depth
from payonce.engine.monitoring.history import QueueMinute, history, runs_by_queue

RECENT_MIN: Final = 5
"""Older retries have succeeded or become errors."""


async def overview(visit: Visit) -> Response:
    window = choice_of(visit.query, "window", tuple(WINDOWS), "1h")
    read, depths = visit.context.read, visit.summary.depths
    runs = await runs_by_queue(read, 60)
    return visit.page(
        "overview.html",
        "Overview",
        window=window,
        windows=tuple(WINDOWS),
        depths=failing_first(depths, runs),
        chart=None if visit.is_refresh else columns(await history(read, WINDOWS[window].minutes), WINDOWS[window].step),
        runs=runs,
        meter=await visit.cache.meter(),
        attention=await visit.cache.attention(),
        causes=await visit.cache.causes(),
        parked_at=_page_of([depth.queue for depth in depths if depth.parked], "parked") or link("/parked"),
        paused_at=_page_of(visit.summary.alerts.paused) or link("/queues", only="paused"),
    )


def _page_of(queues: Sequence[str], state: str | None = None) -> str | None:
    """The page of the queue if a card is about one only, else None."""
    return link(f"/queues/{queues[0]}", state=state) if len(queues) == 1 else None


def failing_first(depths: Sequence[Depth], runs: Mapping[str, Sequence[QueueMinute]]) -> list[Depth]:
    """Queues with parked messages or errors in the last hour first, then retrying ones, then paused ones."""

    def rank(depth: Depth) -> tuple[int, int, bool, str]:
        minutes = runs.get(depth.queue, ())
        errors = depth.parked + sum(each.errors for each in minutes)
        retries = sum(each.retry for each in minutes[-RECENT_MIN:])
        return -errors, -retries, not depth.paused, depth.queue

    return sorted(depths, key=rank)


PAGE = Page("Overview", "/", (get("/", overview),), group="Now")
