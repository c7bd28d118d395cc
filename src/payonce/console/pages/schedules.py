"""Schedules, and the maintenance tasks of workers."""

import re
from typing import Final

from starlette.responses import Response

from payonce.console.page import Page, Visit, get
from payonce.engine.janitors.schedule import schedule_statuses
from payonce.engine.messages import job_log
from payonce.engine.messages.maintenance import Task

RUNS_SHOWN: Final = 5
"""Per task; the job log has all of them."""
RULES: Final = (
    (re.compile(r"Every\(seconds=(\d+)\)"), r"every \1 s"),
    (re.compile(r"Daily\(at='([^']+)', zone='([^']+)'\)"), r"daily at \1 \2"),
)


async def list_schedules(visit: Visit) -> Response:
    read = visit.context.read
    runs = {task.value: await job_log.recent(read, correlation_id=task.value, limit=RUNS_SHOWN) for task in Task}
    rows = [(each, in_words(each.rule)) for each in await schedule_statuses(read)]
    return visit.page("schedules.html", "Schedules", rows=rows, runs=runs)


def in_words(rule: str) -> str:
    """The rule in words; an unknown rule, such as a newer version's, is shown as declared."""
    for pattern, words in RULES:
        if found := pattern.fullmatch(rule):
            return found.expand(words)
    return rule


PAGE = Page("Schedules", "/schedules", (get("/schedules", list_schedules),), group="Work")
