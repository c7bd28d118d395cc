"""The job log: finished runs, newest first, with filters."""

from typing import Any, Final

import asyncpg
from starlette.responses import Response

from payonce.console.forms import PAGE_ROWS, choice_of, moment_of, name_of, number_of, text_of
from payonce.console.links import link
from payonce.console.page import Page, Visit, get
from payonce.engine.messages import job_log
from payonce.kit.outcomes import Invalid

QUERY_LIMIT_MS: Final = 5_000
ERRORS: Final = "errors"
"""The filter for runs that the table of queues counts as errors: failed and parked."""
STATUSES: Final = (*job_log.LOGGED, ERRORS)
FIELDS = ("queue", "status", "action", "correlation_id", "idempotency_key", "since", "until")


async def list_jobs(visit: Visit) -> Response:
    asked = visit.query
    status = choice_of(asked, "status", ("any", *STATUSES), "any")
    found = await _bounded(
        visit,
        queue=name_of(asked, "queue"),
        status=None if status == "any" else job_log.ERRORS if status == ERRORS else status,
        action=name_of(asked, "action"),
        correlation_id=name_of(asked, "correlation_id"),
        idempotency_key=name_of(asked, "idempotency_key"),
        since=moment_of(asked, "since"),
        until=moment_of(asked, "until"),
        limit=PAGE_ROWS + 1,
        before_id=number_of(asked, "before"),
    )
    given = {name: text_of(asked, name) for name in FIELDS}
    rows = found[:PAGE_ROWS]
    return visit.page(
        "jobs.html",
        "Job log",
        rows=rows,
        given=given,
        filtered=any(given.values()),
        queues=[depth.queue for depth in visit.summary.depths],
        statuses=STATUSES,
        first=link("/jobs", **given) if text_of(asked, "before") else None,
        more=link("/jobs", **given, before=rows[-1].id) if len(found) > PAGE_ROWS else None,
    )


async def _bounded(visit: Visit, **filters: Any) -> list[job_log.Entry]:
    """Not every filter has an index, and a month of a busy log is large: slow queries are cancelled."""
    async with visit.context.database.work.acquire() as connection, connection.transaction(readonly=True):
        await connection.execute(f"set local statement_timeout = {QUERY_LIMIT_MS}")
        try:
            return await job_log.recent(connection, **filters)
        except asyncpg.QueryCanceledError:
            raise Invalid(
                f"the search took more than {QUERY_LIMIT_MS // 1_000} s and was cancelled; "
                "add a correlation id, an idempotency key or a failing status, or a shorter time"
            ) from None


PAGE = Page("Job log", "/jobs", (get("/jobs", list_jobs),), group="Record")
