"""Every page of the console, in the order of the navigation. A new page is one module here and one line below."""

from payonce.console import live
from payonce.console.page import Page
from payonce.console.pages import jobs, messages, overview, parked, queues, traces

PAGES: tuple[Page, ...] = (
    overview.PAGE,
    live.PAGE,
    queues.PAGE,
    messages.PAGE,
    parked.PAGE,
    jobs.PAGE,
    traces.PAGE,
)
