"""Billing's HTTP as its callers meet it: who they are, and what they ask for."""

import itertools
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Self

from starlette.types import ASGIApp

from payonce.app.process import App
from payonce.engine.operators.api_keys import make_key
from payonce.services.billing.api.tokens import Claims, Tokens
from payonce.services.billing.settings import BillingSettings
from payonce.services.billing.subscriptions.domain.config import SubscriptionConfig
from payonce.services.billing.subscriptions.store.accounts import AccountVersions
from tests.http.client import Answer, WebClient, send_request
from tests.services.billing.billing_stage import PAYS, Customer, Door, House
from tests.services.billing.billing_stage import SECRET as SHARED

SECRET: Final = b"a secret that both services of billing know"
PASSWORD: Final = "correct horse battery staple"


class ProcessClock:
    """Moved by hand: tokens are judged by the clock of the process that reads them."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 31, 12, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


def resources(app: App, clock: ProcessClock | None = None) -> list[object]:
    """What a role of billing opens, as far as its routes need it."""
    versions = AccountVersions(app.read)
    return [
        Tokens([SECRET], versions, clock=clock or ProcessClock()),
        versions,
        SubscriptionConfig(
            [SHARED], test_clocks=True, registrations_max=app.settings.of(BillingSettings).registrations_max
        ),
    ]


@dataclass
class Counter(WebClient):
    @property
    def tokens(self) -> Tokens:
        [found] = [each for each in self.app.resources if isinstance(each, Tokens)]
        return found

    def bearing(self, text: str) -> Self:
        return replace(self, headers={"authorization": f"Bearer {text}"})

    async def with_key(self, holder: str, *scopes: str) -> Self:
        async with self.app.begin() as tx:
            return self.bearing((await make_key(tx, holder, scopes, "tester")).secret)

    def as_account(self, account_id: str, role: str = "customer", version: int = 0) -> Self:
        return self.bearing(self.tokens.issue(Claims(account_id, role, version)))

    async def registered(self, email: str, password: str = PASSWORD, **more: str) -> Self:
        """As a customer who has just made an account."""
        made = await self.post("/v1/auth/register", {"email": email, "password": password, **more})
        assert made.status == 201, made.body
        return self.bearing(made.json["access_token"])


@dataclass
class Shop(Counter):
    """All of billing: what callers order here is carried out by both services when the house runs."""

    house: House = field(kw_only=True)
    account_id: str = ""
    _keys: "itertools.count[int]" = field(default_factory=itertools.count)

    async def customer(self, email: str, card: str | None = PAYS) -> Self:
        """Registered, with a card."""
        made = await self.post("/v1/auth/register", {"email": email, "password": PASSWORD})
        assert made.status == 201, made.body
        account_id = made.json["account"]["id"]
        if card is not None:
            await self.house.give_card(Customer(account_id, None), card)
        return replace(self.bearing(made.json["access_token"]), account_id=account_id)

    async def order(self, path: str, body: object = None) -> Answer:
        """With an Idempotency-Key of its own."""
        return await self.post(path, body, idempotency_key=f"order-{next(self._keys)}")

    async def subscribed(self, plan: str = "basic") -> Any:
        """The document of a new subscription whose first invoice is paid."""
        made = await self.order("/v1/subscriptions", {"plan_id": plan})
        assert made.status == 201, made.body
        await self.house.run()
        return (await self.get(made.headers["location"])).json


def through(web: ASGIApp, door: Door) -> Callable[[dict[str, str], bytes], Coroutine[Any, Any, tuple[int, Any]]]:
    """Notifications of payments take the real route, unless the door turns them away."""

    async def take(headers: dict[str, str], body: bytes) -> tuple[int, Any]:
        if door.answers:
            return door.answers.pop(0), {"detail": "not now"}
        answer = await send_request(web, "POST", "/v1/webhooks/payment", [body], headers)
        return answer.status, answer.json

    return take
