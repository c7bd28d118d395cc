"""The production route for notifications from payments, on the connections of the crashing process."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from fastapi import FastAPI

from payonce.engine.database.connections import Database
from payonce.engine.messages.transaction import NotifyingFeed, Reader, Tx, begin
from payonce.http.kit.problems import exception_handlers
from payonce.kit.http import Application
from payonce.kit.webhooks import Secret
from payonce.services.billing.subscriptions.api.webhooks import short_webhook_routes
from payonce.services.billing.subscriptions.domain.config import SubscriptionConfig

SECRET: Final = Secret("the-secret-of-explored-notifications")


@dataclass(frozen=True)
class RouteContext:
    """The part of AppContext that the route uses; the full context needs more than a forked process has."""

    database: Database
    feed: NotifyingFeed
    resources: Sequence[object] = (SubscriptionConfig((SECRET,)),)

    @property
    def read(self) -> Reader:
        return Reader(self.database)

    def begin(self, trace_id: str | None = None) -> AbstractAsyncContextManager[Tx]:
        return begin(self.database, self.feed, trace_id)


def notification_application(database: Database, feed: NotifyingFeed) -> Application:
    context = RouteContext(database, feed)

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        web = _built()
        web.state.context = context
        await web(scope, receive, send)

    return answer


@cache
def _built() -> FastAPI:
    """Built once before processes are forked: it takes longer than a whole run."""
    web = FastAPI(openapi_url=None, exception_handlers=exception_handlers())
    web.router.routes.extend(short_webhook_routes())
    return web
