"""A login that ended at subscriptions has ended at payments, which run in a process and on a database of their own."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from payonce.app.process import App
from payonce.engine.operators import passwords
from payonce.http.application import build_web
from payonce.http.server import listening
from payonce.services.billing.api import callers
from payonce.services.billing.api.token_versions import KNOWN_FOR_S
from payonce.services.billing.api.tokens import ACCESS_S, Claims, Tokens
from payonce.services.billing.payments.store.token_versions import RemoteVersions
from payonce.services.billing.settings import PAYMENTS, SUBSCRIPTIONS
from payonce.settings import Settings, load_settings
from payonce.testing import ScratchDatabase, ScratchServer
from tests.ablations import Ablations, cases, given, missed, patched
from tests.services.billing.api.counter import PASSWORD, Counter

SHARED = "a-secret-that-every-process-of-billing-has"
OTHER_PASSWORD = "another few words altogether"
QUARTER_HOUR_S = 15 * 60
MOVES = (
    ("DELETE", "/v1/payment-methods/none", None),
    ("POST", "/v1/transactions/none/refund", {"reason": "asked for"}),
    ("POST", "/v1/payment-methods/none/default", None),
    ("POST", "/v1/payment-methods/", {"token": "pm_none"}),
    ("POST", "/v1/payments/process", {"amount": "1.00", "currency": "AED"}),
)
"""What a process of payments does with money or cards."""


@dataclass
class Apart:
    """Two processes as they are deployed, each with what its role opens."""

    subscriptions: Counter
    payments: Counter
    listener: AsyncExitStack
    """Closed, subscriptions no longer answer."""
    now_s: float = 0.0

    async def moved(self, token: str) -> list[int]:
        asking = self.payments.bearing(token)
        return [
            (await asking(method, path, body=body, headers={"idempotency_key": path, "prefer": "respond-async"})).status
            for method, path, body in MOVES
        ]

    async def looked(self, token: str) -> int:
        return (await self.payments.bearing(token).get("/v1/transactions")).status

    async def made_operator(self, account_id: str, role: str = "operator") -> None:
        key = await self.subscriptions.with_key("root", "billing:operate")
        assert (await key.post(f"/v1/ops/accounts/{account_id}/role", {"role": role})).status == 200


OpenApart = Callable[[], AbstractAsyncContextManager[Apart]]


@pytest.fixture(autouse=True)
def _quick_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "COST", 2**4)


@pytest.fixture
def apart(
    settings: Settings, scratch: ScratchDatabase, postgres: ScratchServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[OpenApart]:
    monkeypatch.setenv("JWT_SECRET_KEY", SHARED)
    monkeypatch.setenv("WEBHOOK_SIGNING_SECRET", SHARED)
    with postgres.lent() as second:
        yield opening(settings, {SUBSCRIPTIONS: scratch, PAYMENTS: second}, monkeypatch)


def opening(settings: Settings, databases: dict[str, ScratchDatabase], monkeypatch: pytest.MonkeyPatch) -> OpenApart:

    @asynccontextmanager
    async def opened() -> AsyncIterator[Apart]:
        async with AsyncExitStack() as stack:
            counters = []
            listener = AsyncExitStack()
            for role, database in databases.items():
                monkeypatch.setenv("PAYONCE_DATA_DIR", str(settings.data_dir / role))
                monkeypatch.setenv("DATABASE_URL", database.service_url)
                monkeypatch.setenv("BILLING_DATABASE", role.partition(".")[2])
                app = await stack.enter_async_context(App.open(load_settings(), [role]))
                counters.append(Counter(app, build_web(app), database))
                if role == SUBSCRIPTIONS:
                    await stack.enter_async_context(listener)
                    port = await listener.enter_async_context(listening(app, "127.0.0.1", 0))
                    monkeypatch.setenv("SUBSCRIPTION_SERVICE_URL", f"http://127.0.0.1:{port}")
            both = Apart(counters[0], counters[1], listener)
            versions = both.payments.tokens._versions
            assert isinstance(versions, RemoteVersions)
            versions._clock = lambda: both.now_s
            yield both

    return opened


async def entered(ask: Counter, password: str = PASSWORD, way: str = "login") -> tuple[str, str]:
    """Account and token."""
    answer = await ask.post(f"/v1/auth/{way}", {"email": "ada@example.com", "password": password})
    return answer.json["account"]["id"], answer.json["access_token"]


async def test_after_a_new_password_payments_take_no_order_of_the_old_login(apart: OpenApart) -> None:
    async with apart() as at:
        _, token = await entered(at.subscriptions, way="register")
        assert 401 not in await at.moved(token)
        assert await at.looked(token) == 200
        change = {"old_password": PASSWORD, "new_password": OTHER_PASSWORD}
        assert (await at.subscriptions.bearing(token).post("/v1/auth/change-password", change)).status == 200
        assert await at.looked(token) == 200, "what is only looked at may be judged by what was known just now"
        assert await at.moved(token) == [401] * len(MOVES)
        _, renewed = await entered(at.subscriptions, OTHER_PASSWORD)
        assert 401 not in await at.moved(renewed)
        # Of an account that there is not.
        assert await at.looked(at.payments.tokens.issue(Claims("nobody", "customer", 0))) == 401


async def test_looking_ends_with_a_new_role_within_the_bound(apart: OpenApart) -> None:
    assert KNOWN_FOR_S <= ACCESS_S <= QUARTER_HOUR_S
    async with apart() as at:
        account, token = await entered(at.subscriptions, way="register")
        assert await at.looked(token) == 200
        await at.made_operator(account)
        at.now_s = KNOWN_FOR_S - 1
        assert await at.looked(token) == 200
        at.now_s = KNOWN_FOR_S
        assert await at.looked(token) == 401


async def test_who_is_no_operator_any_more_gives_nothing_back_and_steers_nothing(apart: OpenApart) -> None:
    async with apart() as at:
        account, _ = await entered(at.subscriptions, way="register")
        await at.made_operator(account)
        _, token = await entered(at.subscriptions)
        assert (await at.moved(token))[1] == 404, "an operator is told that there is no such transaction"
        assert (await at.payments.bearing(token).get("/v1/ops/queues")).status == 200
        await at.made_operator(account, "customer")
        assert await at.moved(token) == [401] * len(MOVES)
        assert (await at.payments.bearing(token).get("/v1/ops/queues")).status == 401
        _, renewed = await entered(at.subscriptions)
        assert (await at.moved(renewed))[1] == 403


async def test_while_subscriptions_are_away_nobody_is_let_in_by_token(apart: OpenApart) -> None:
    async with apart() as at:
        _, token = await entered(at.subscriptions, way="register")
        assert await at.looked(token) == 200
        await at.listener.aclose()
        assert await at.looked(token) == 200, "what is known may be used for as long as it would be otherwise"
        at.now_s = KNOWN_FOR_S
        assert await at.looked(token) == 503
        assert await at.moved(token) == [503] * len(MOVES)


async def _always(*_: Any, **__: Any) -> bool:
    return True


ABLATIONS: Ablations = {
    "the look at the account": (
        patched(Tokens, "counts", _always),
        [given(test_who_is_no_operator_any_more_gives_nothing_back_and_steers_nothing)],
    ),
    "the moment at which a change is judged": (
        patched(callers, "READ_METHODS", ("GET", "POST", "DELETE")),
        [given(test_after_a_new_password_payments_take_no_order_of_the_old_login)],
    ),
}


@pytest.mark.parametrize(("name", "number"), cases(ABLATIONS))
async def test_without_a_safeguard_its_test_fails(apart: OpenApart, name: str, number: int) -> None:
    await missed(ABLATIONS, name, number, apart)  # type: ignore[arg-type]
