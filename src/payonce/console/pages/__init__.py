"""Every page of the console, in the order of the navigation. A new page is one module here and one line below."""

from payonce.console.page import Page
from payonce.console.pages import overview, queues

PAGES: tuple[Page, ...] = (
    overview.PAGE,
    queues.PAGE,
)
