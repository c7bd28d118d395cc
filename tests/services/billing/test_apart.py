"""Both services as they are deployed: a process each, HTTP between them, and one of them killed on the way."""

import base64
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from payonce.engine.apikeys import make_key
from payonce.kit.http import HttpClient
from payonce.kit.outcomes import PayonceError
from payonce.kit.ports import held_ports
from payonce.services.billing import INVARIANTS
from payonce.testing import OpenStage, ScratchDatabase, Stage, eventually
from payonce.testing.processes import Child, Processes
from payonce.testing.serving import serving
from tests.engine.webhooks_stage import Shop as Merchant

SUBSCRIPTIONS: Final = ("billing.subscriptions", "webhooks.sender")
PAYMENTS: Final = ("billing.payments",)
WITHIN_S: Final = 50.0
"""For a process to begin on a machine that has a lot to do."""
CARD: Final = {"number": "4242424242424242", "exp_month": 12, "exp_year": 2090, "cvc": "123"}
ADA: Final = {"email": "ada@example.com", "password": "correct horse battery staple"}


@dataclass
class Running:
    """One service: its process, its port, and how it is asked."""

    processes: Processes
    roles: tuple[str, ...]
    port: int
    environment: dict[str, str]
    http: HttpClient
    child: Child | None = None

    def start(self) -> None:
        command = (sys.executable, "-m", "payonce", "run", *self.roles, "--port", str(self.port))
        self.child = self.processes.start(*command, name=self.roles[0], environment=self.environment)

    def kill(self) -> None:
        assert self.child is not None
        self.child.kill()

    async def ready(self) -> None:
        async def answers() -> bool:
            assert self.child is not None
            assert self.child.running, self.child.last_words()
            try:
                return (await self.http.request("GET", "/readyz")).status == 200
            except PayonceError:
                return False

        await eventually(answers, WITHIN_S, f"{self.roles[0]} is ready")

    async def ask(self, method: str, path: str, token: str = "", body: object = None, key: str = "") -> Any:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        raw = None if body is None else msgspec.json.encode(body)
        headers |= {"Content-Type": "application/json"} if raw else {}
        headers |= {"Idempotency-Key": key} if key else {}
        answer = await self.http.request(method, path, body=raw, headers=headers)
        assert answer.status < 300, (path, answer.status, answer.body)
        return msgspec.json.decode(answer.body)


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    with Processes(tmp_path) as running:
        yield running


@asynccontextmanager
async def apart(processes: Processes, scratch: ScratchDatabase, folder: Path) -> AsyncIterator[tuple[Running, Running]]:
    with held_ports(2) as ports:
        shared = {
            "DATABASE_URL": scratch.service_url, "JWT_SECRET_KEY": "j" * 32, "WEBHOOK_SIGNING_SECRET": "w" * 32,
            "PAYONCE_KEYS": f"k1:{base64.b64encode(bytes(32)).decode()}", "PAYONCE_WEBHOOK_PRIVATE": "true",
            "SUBSCRIPTION_SERVICE_URL": f"http://127.0.0.1:{ports[0]}",
        }  # fmt: skip
        services = []
        for roles, port in zip((SUBSCRIPTIONS, PAYMENTS), ports, strict=True):
            http = HttpClient(roles[0], f"http://127.0.0.1:{port}", timeout_s=WITHIN_S, allow_private=True)
            given = {**shared, "PAYONCE_DATA_DIR": str(folder / roles[0])}
            services.append(Running(processes, roles, port, given, http))
        subscriptions, payments = services
        async with subscriptions.http, payments.http:
            yield subscriptions, payments


async def key_for(s: Stage, *scopes: str) -> str:
    async with s.begin() as tx:
        return (await make_key(tx, "merchant", scopes, "tester")).secret


@pytest.mark.timeout(180)
async def test_a_customers_life_across_both_processes_one_of_which_is_killed(
    stage: OpenStage, scratch: ScratchDatabase, processes: Processes, tmp_path: Path
) -> None:
    async with (
        stage() as s,
        serving(merchant := Merchant()) as hook,
        apart(processes, scratch, tmp_path) as (subscriptions, payments),
    ):
        for service in (subscriptions, payments):
            service.start()
        for service in (subscriptions, payments):
            await service.ready()
        key = await key_for(s, "webhooks:read", "webhooks:write")
        wanted = {"url": f"{hook}/hook", "events": ["subscription.*", "invoice.*"]}
        await subscriptions.ask("POST", "/v1/webhooks/endpoints", key, wanted)

        token = (await subscriptions.ask("POST", "/v1/auth/register", body=ADA))["access_token"]
        card = (await payments.ask("POST", "/simulated-gateway/v1/tokens", body=CARD))["id"]
        await payments.ask("POST", "/v1/payment-methods/", token, {"token": card})

        payments.kill()
        made = await subscriptions.ask("POST", "/v1/subscriptions", token, {"plan_id": "basic"}, "order-1")
        assert made["state"] == "incomplete"
        payments.start()
        await payments.ready()

        async def state() -> str:
            found = await subscriptions.ask("GET", f"/v1/subscriptions/{made['id']}", token)
            return str(found["state"])

        async def active() -> bool:
            return await state() == "active"

        await eventually(active, WITHIN_S, "the subscription is active")
        [charge] = (await payments.ask("GET", "/v1/transactions", token))["transactions"]
        assert (charge["state"], charge["subscription_id"]) == ("succeeded", made["id"]), charge
        [invoice] = (await subscriptions.ask("GET", "/v1/invoices", token))["invoices"]
        assert (invoice["state"], invoice["subscription_id"]) == ("paid", made["id"])

        await subscriptions.ask("POST", f"/v1/subscriptions/{made['id']}/cancel", token, {"at": "now"}, "order-2")
        assert await state() == "canceled"
        told = ["subscription.created", "invoice.issued", "invoice.paid", "subscription.activated",
                "subscription.canceled"]  # fmt: skip

        def heard() -> list[str]:
            """By the id of each event: a sender that had no answer in time tells it again under the same one."""
            return list({each.id: msgspec.json.decode(each.body)["type"] for each in merchant.arrived}.values())

        await eventually(lambda: len(heard()) >= len(told), WITHIN_S, "the merchant heard of all of it")
        assert sorted(heard()) == sorted(told)
        broken = {name: rows for name, query in INVARIANTS.items() if (rows := await s.owner.fetch(query))}
        assert broken == {}
