"""What routes use of the application: the database, the queues, and transactions in the trace of their request."""

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
    """The application as routes see it."""

    database: Database
    read: Reader
    admin: Admin
    resources: Sequence[object]
    """What the roles of this process opened, such as vendors' clients and keys; empty without roles."""

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
"""The trace id of the response and of all messages that follow from the request."""
