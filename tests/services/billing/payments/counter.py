"""The routes of payments over a till, asked in process as customers, operators and strangers would."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

from fastapi import FastAPI

from payonce.engine.controls import Actions
from payonce.engine.database.connections import Database
from payonce.engine.messages.ports import Admin
from payonce.engine.messages.transaction import Reader, Tx, begin
from payonce.engine.operators.api_keys import make_key
from payonce.http.guard import Guard
from payonce.http.kit.attempts import attempts_by_kind
from payonce.http.kit.problems import exception_handlers
from payonce.kit.webhooks import Secret
from payonce.services.billing.api.tokens import Claims, Tokens
from payonce.services.billing.payments.api.gateway_events import GatewayEventReceiver
from payonce.services.billing.payments.api.routes import build_routes
from payonce.services.billing.payments.decisions import ACTION, refund_action
from payonce.testing import OpenStage
from tests.http.client import Answer, send_request
from tests.services.billing.payments.till import Till, open_till

GATEWAY_SECRET: Final = Secret("a-secret-that-the-gateway-gave-us")


@dataclass
class PaymentsDesk:
    """What routes find behind the counter."""

    till: Till
    resources: Sequence[object]
    actions: Actions = field(default_factory=dict)

    @property
    def database(self) -> Database:
        return self.till.s.database

    @property
    def read(self) -> Reader:
        return self.till.s.read

    @property
    def admin(self) -> Admin:
        return self.till.s.admin

    def begin(self, trace_id: str | None = None) -> AbstractAsyncContextManager[Tx]:
        return begin(self.till.s.database, self.till.s.feed, trace_id)


@dataclass(frozen=True)
class Counter:
    till: Till
    web: FastAPI
    tokens: Tokens
    headers: Mapping[str, str] = field(default_factory=dict)

    def as_customer(self, account_id: str = "acc-1", role: str = "customer") -> "Counter":
        token = self.tokens.issue(Claims(account_id, role, 0))
        return replace(self, headers={"authorization": f"Bearer {token}"})

    def as_operator(self) -> "Counter":
        return self.as_customer("operator-1", "operator")

    async def as_key(self, *scopes: str) -> "Counter":
        async with self.till.s.begin() as tx:
            made = await make_key(tx, "a service", scopes, "tester")
        return replace(self, headers={"authorization": f"Bearer {made.secret}"})

    async def __call__(self, method: str, path: str, body: object = None, **headers: str) -> Answer:
        raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        given = {**self.headers, **{name.replace("_", "-"): value for name, value in headers.items()}}
        if raw:
            given.setdefault("content-type", "application/json")
        return await send_request(self.web, method, path, [raw], given)

    async def pay(self, key: str = "order-1", *, wait: int = 0, **fields: Any) -> Answer:
        body = {"amount": "29.00", "currency": "AED", **fields}
        return await self("POST", "/v1/payments/process", body, idempotency_key=key, prefer=f"wait={wait}")

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Meanwhile a worker does what is due."""

        async def work() -> None:
            while True:
                await self.till.drain()
                await asyncio.sleep(0)

        task = asyncio.create_task(work())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def open_counter(stage: OpenStage, **how: Any) -> AsyncIterator[Counter]:
    async with open_till(stage, **how) as till:
        tokens = Tokens([b"a key of at least thirty-two bytes"])
        resources = [till.client, till.notifier, tokens, GatewayEventReceiver([GATEWAY_SECRET])]
        web = FastAPI(redirect_slashes=False, exception_handlers=exception_handlers())
        web.add_middleware(Guard)
        web.state.context = PaymentsDesk(till, resources, {ACTION: refund_action(till.s.admin)})
        web.state.attempts = attempts_by_kind()
        web.include_router(build_routes())
        yield Counter(till, web, tokens)
