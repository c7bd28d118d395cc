"""What a route finds behind the counter: the store, the queues, and transactions in the trace of its request."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Annotated, Protocol, cast

from fastapi import Depends
from starlette.requests import Request

from payonce.engine.controls import Actions
from payonce.engine.database.connections import Database
from payonce.engine.messages.ports import Admin
from payonce.engine.messages.transaction import Reader, Tx


class AppContext(Protocol):
    """The application, as far as routes go."""

    database: Database
    read: Reader
    admin: Admin
    resources: Sequence[object]
    """What the services' roles of this process opened: vendors' clients, keys; empty in one that runs none."""

    @property
    def actions(self) -> Actions: ...

    def begin(self, trace_id: str | None = None) -> AbstractAsyncContextManager[Tx]: ...


def context_of(request: Request) -> AppContext:
    return cast(AppContext, request.app.state.context)


def trace_of(request: Request) -> str | None:
    trace_id: str | None = request.scope.get("state", {}).get("trace_id")
    return trace_id


async def _context(request: Request) -> AppContext:
    return context_of(request)


async def _trace(request: Request) -> str | None:
    return trace_of(request)


AppContextDep = Annotated[AppContext, Depends(_context)]
Trace = Annotated[str | None, Depends(_trace)]
"""The id that every answer carries, and every message that follows from the request."""
