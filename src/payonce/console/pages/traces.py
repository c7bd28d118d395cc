"""Search: the objects that an id identifies, and the timeline of one payment."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

import asyncpg
from starlette.responses import Response

from payonce.console.forms import name_of
from payonce.console.page import Page, Visit, get
from payonce.engine.messages.search import find_anywhere
from payonce.engine.monitoring.lookup import MATCHES_MAX, Lookup, LookupResult, engine_matches
from payonce.engine.monitoring.timeline import Kind, Timeline, read_timeline

QUERY_LIMIT_MS: Final = 3_000
"""For the search in one service; if it takes longer, only the other services' results are shown."""
FOLLOWED_MAX: Final = 3
"""Objects whose timelines, and correlation ids whose objects, are looked up."""


async def show_trace(visit: Visit) -> Response:
    what = name_of(visit.query, "id")
    if what is None:
        return visit.page("trace.html", "Find", what=None, matches=(), slow=0, timeline=None, kinds=Kind, waiting=None)
    matches, slow = await _matches(visit, what)
    found, about = await _followed(visit, what, matches)
    related = []
    for correlation_id in found.correlation_ids[:FOLLOWED_MAX]:
        related += (await _of_services(visit, correlation_id))[0]
    known: dict[str, LookupResult] = {}
    for each in (*matches, *related):
        known.setdefault(each.path, each)
    waiting = None if found.entries or matches else await find_anywhere(visit.context.admin, what)
    return visit.page(
        "trace.html",
        f"Trace of {what}",
        what=what,
        matches=list(known.values()),
        slow=slow,
        timeline=found,
        about=about,
        newest=_cut(matches),
        kinds=Kind,
        waiting=waiting,
    )


async def _followed(visit: Visit, what: str, matches: Sequence[LookupResult]) -> tuple[Timeline, LookupResult | None]:
    """The timeline of the id, or of the first matching object that has one, and that object."""
    found = await read_timeline(visit.context.read, what)
    if found.entries:
        return found, None
    for match in matches[:FOLLOWED_MAX]:
        if match.correlation_id and (found := await read_timeline(visit.context.read, match.correlation_id)).entries:
            return found, match
    return found, None


def _cut(matches: Sequence[LookupResult]) -> int:
    """How many matches of a kind are shown if there may be more; 0 if all are."""
    most = max(Counter(each.kind for each in matches).values(), default=0)
    return most if most >= MATCHES_MAX else 0


async def _matches(visit: Visit, what: str) -> tuple[list[LookupResult], int]:
    """The matches, and the number of services whose search timed out."""
    found, slow = await _of_services(visit, what)
    return [*found, *await engine_matches(visit.context.read, visit.context.admin, what)], slow


async def _of_services(visit: Visit, what: str) -> tuple[list[LookupResult], int]:
    answers = [await _look(visit, lookup, what) for lookup in visit.context.lookups]
    return [match for found in answers if found is not None for match in found], answers.count(None)


async def _look(visit: Visit, lookup: Lookup, what: str) -> Sequence[LookupResult] | None:
    async with visit.context.database.work.acquire() as connection:
        try:
            async with connection.transaction(readonly=True):
                await connection.execute(f"set local statement_timeout = {QUERY_LIMIT_MS}")
                return await lookup(connection, what)
        except asyncpg.QueryCanceledError:
            return None


PAGE = Page("Find", "/trace", (get("/trace", show_trace),), group="Record")
