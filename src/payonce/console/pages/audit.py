"""The audit log, newest first, and the state of its seals."""

from starlette.responses import Response

from payonce.console.forms import PAGE_ROWS, choice_of, moment_of, name_of, number_of
from payonce.console.links import link
from payonce.console.page import Page, Visit, get
from payonce.engine.audit import Severity, notes, seal_state

FILTERS = ("reference", "actor", "location", "severity", "since", "until")


async def log(visit: Visit) -> Response:
    severity = choice_of(visit.query, "severity", ("all", *Severity), "all")
    before = number_of(visit.query, "before")
    found = await notes(
        visit.context.read,
        reference=name_of(visit.query, "reference"),
        actor=name_of(visit.query, "actor"),
        location=name_of(visit.query, "location"),
        severity=None if severity == "all" else Severity(severity),
        since=moment_of(visit.query, "since"),
        until=moment_of(visit.query, "until"),
        before=before,
        limit=PAGE_ROWS + 1,
    )
    page, typed = found[:PAGE_ROWS], {name: visit.query.get(name, "") for name in FILTERS}
    return visit.page(
        "audit.html",
        "Audit log",
        rows=page,
        typed=typed,
        severities=("all", *Severity),
        seals=await seal_state(visit.context.read),
        filtered=any(typed.values()),
        first=link("/audit", **typed) if before else None,
        next=link("/audit", **typed, before=page[-1].id) if len(found) > PAGE_ROWS else None,
    )


PAGE = Page("Audit log", "/audit", (get("/audit", log),), group="Record")
