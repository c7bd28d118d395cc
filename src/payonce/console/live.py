"""The event stream of open pages: a tick every few seconds, and samples for the charts."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import Response, StreamingResponse

from payonce.console.forms import choice_of, name_of
from payonce.console.page import Page, Visit, get
from payonce.engine.monitoring.history import QueueMinute, history

TICK_S: Final = 3.0
SAMPLE_EVERY: Final = 5
"""Ticks between chart samples, whose resolution is a minute."""
STREAM_LIMIT_S: Final = 60.0
"""The browser reconnects automatically and is then authenticated again, so a logout takes effect."""
STREAMS_MAX: Final = 100
"""Per process; further pages do not refresh themselves."""


@dataclass(frozen=True)
class Window:
    minutes: int
    step: int
    """Minutes per point of a chart."""


WINDOWS: Final = {"1h": Window(60, 1), "6h": Window(360, 5), "24h": Window(1_440, 15)}

_open: set[object] = set()


async def live(visit: Visit) -> Response:
    if len(_open) >= STREAMS_MAX:
        raise HTTPException(503, f"{STREAMS_MAX} pages are open already; this one does not refresh itself")
    queue = name_of(visit.query, "queue")
    window = WINDOWS[choice_of(visit.query, "window", tuple(WINDOWS), "1h")]
    return StreamingResponse(_ticks(visit, queue, window), media_type="text/event-stream")


async def _ticks(visit: Visit, queue: str | None, window: Window) -> AsyncIterator[str]:
    loop, closing, mark = asyncio.get_running_loop(), visit.context.closing, object()
    ends, tick = loop.time() + STREAM_LIMIT_S, 0
    _open.add(mark)
    try:
        yield "retry: 2000\n\n"
        while loop.time() < ends and not closing.is_set():
            if tick % SAMPLE_EVERY == 0:
                found = columns(await history(visit.context.read, window.minutes, queue), window.step)
                yield f"event: sample\ndata: {msgspec.json.encode(found).decode()}\n\n"
            yield f"event: tick\ndata: {tick}\n\n"
            tick += 1
            with suppress(TimeoutError):
                await asyncio.wait_for(closing.wait(), TICK_S)
    finally:
        _open.discard(mark)


def columns(minutes: Sequence[QueueMinute], step: int = 1) -> dict[str, list[Any]]:
    """Columns for charts: one list per line, a gap as None. A point has the average of runs, the last depth and the
    greatest age. The current minute is omitted from runs, since its partial count would look like a drop."""
    first = len(minutes) % step
    groups = [minutes[start : start + step] for start in range(first, len(minutes), step)]
    found: dict[str, list[Any]] = {"at": [int(group[-1].minute.timestamp()) for group in groups]}
    running = minutes[-1] if minutes else None
    for name in ("success", "retry", "errors"):
        over = [[getattr(each, name) for each in group if each is not running] for group in groups]
        found[name] = [round(sum(counts) / len(counts), 1) if counts else None for counts in over]
    for name in ("waiting", "delayed", "lying"):
        found[name] = [_last([getattr(each, name) for each in group]) for group in groups]
    ages = [[each.oldest_s for each in group if each.oldest_s is not None] for group in groups]
    found["oldest_s"] = [round(max(known), 1) if known else None for known in ages]
    return found


def _last(values: Sequence[int | None]) -> int | None:
    return next((value for value in reversed(values) if value is not None), None)


PAGE = Page("Live", "/live", (get("/live", live),))
