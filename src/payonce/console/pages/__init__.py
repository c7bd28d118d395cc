"""The platform's pages, in the order of the navigation. A new page is one module here and one line below."""

from payonce.console import live
from payonce.console.page import Page
from payonce.console.pages import (
    approvals,
    audit,
    causes,
    effects,
    freezes,
    jobs,
    leases,
    limits,
    messages,
    outbox,
    overview,
    parked,
    queues,
    reconcile,
    schedules,
    traces,
    vendors,
)

PAGES: tuple[Page, ...] = (
    overview.PAGE,
    live.PAGE,
    queues.PAGE,
    messages.PAGE,
    parked.PAGE,
    causes.PAGE,
    outbox.PAGE,
    leases.PAGE,
    schedules.PAGE,
    vendors.PAGE,
    effects.PAGE,
    approvals.PAGE,
    freezes.PAGE,
    limits.PAGE,
    reconcile.PAGE,
    jobs.PAGE,
    traces.PAGE,
    audit.PAGE,
)
