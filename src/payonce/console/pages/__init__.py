"""Every page of the console, in the order of the navigation. A new page is one module here and one line below."""

from payonce.console.page import Page
from payonce.console.pages import (
    approvals,
    audit,
    effects,
    freezes,
    leases,
    limits,
    outbox,
    overview,
    queues,
    reconcile,
)  # fmt: skip

PAGES: tuple[Page, ...] = (
    overview.PAGE,
    queues.PAGE,
    outbox.PAGE,
    leases.PAGE,
    effects.PAGE,
    approvals.PAGE,
    freezes.PAGE,
    limits.PAGE,
    reconcile.PAGE,
    audit.PAGE,
)
