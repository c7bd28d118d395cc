"""The stream that keeps open pages fresh: every few seconds the newest minutes, and the word to look again."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import Response, StreamingResponse

from payonce.console.forms import choice_of, name_of
from payonce.console.page import Page, Visit, get
from payonce.engine.history import Minute, history

TICK_S: Final = 3.0
STREAM_LIMIT_S: Final = 60.0
"""A browser comes back by itself, and is then looked at anew: whoever was logged out meanwhile stays out."""
STREAMS_MAX: Final = 100
"""Per process; whoever comes later has pages that do not renew themselves."""
WINDOWS: Final = {"1h": 60, "6h": 360, "24h": 1_440}

_open: set[object] = set()


async def live(visit: Visit) -> Response:
    if len(_open) >= STREAMS_MAX:
        raise HTTPException(503, f"{STREAMS_MAX} pages are open already; this one does not renew itself")
    queue = name_of(visit.asked, "queue")
    minutes = WINDOWS[choice_of(visit.asked, "window", tuple(WINDOWS), "1h")]
    return StreamingResponse(_ticks(visit, queue, minutes), media_type="text/event-stream")


async def _ticks(visit: Visit, queue: str | None, minutes: int) -> AsyncIterator[str]:
    loop, closing, mark = asyncio.get_running_loop(), visit.desk.closing, object()
    ends = loop.time() + STREAM_LIMIT_S
    _open.add(mark)
    try:
        yield "retry: 2000\n\n"
        while loop.time() < ends and not closing.is_set():
            found = columns(await history(visit.desk.read, minutes, queue))
            yield f"event: tick\ndata: {msgspec.json.encode(found).decode()}\n\n"
            with suppress(TimeoutError):
                await asyncio.wait_for(closing.wait(), TICK_S)
    finally:
        _open.discard(mark)


def columns(minutes: Sequence[Minute]) -> dict[str, list[Any]]:
    """As charts take them: one list per line, gaps as null."""
    names = ("success", "errors", "waiting", "delayed", "lying", "oldest_s")
    found: dict[str, list[Any]] = {name: [getattr(each, name) for each in minutes] for name in names}
    for name in ("success", "errors"):
        # The minute that runs is not over: its count so far would look like a fall.
        found[name][-1:] = [None]
    return {"at": [int(each.minute.timestamp()) for each in minutes], **found}


PAGE = Page("Live", "/live", (get("/live", live),))
