"""The application for commands that need the tables of subscriptions."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from payonce.cli.output import open_app
from payonce.kit.outcomes import Invalid

if TYPE_CHECKING:
    from payonce.app.process import App

ROLE: Final = "billing.subscriptions"


@asynccontextmanager
async def open_subscriptions_app() -> AsyncIterator["App"]:
    """Raises Invalid if subscriptions use another database."""
    async with open_app() as app:
        if not app.holds(ROLE):
            raise Invalid(
                f"{ROLE} has a database of its own; run this command with that DATABASE_URL and "
                f"BILLING_DATABASE={ROLE.partition('.')[2]}"
            )
        yield app
