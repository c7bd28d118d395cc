"""Both services as they are deployed: a process each, HTTP between them, and a database each or one for both."""

import base64
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from payonce.engine.operators.api_keys import make_key
from payonce.kit.http import HttpClient
from payonce.kit.outcomes import PayonceError
from payonce.kit.ports import reserved_ports
from payonce.testing import ScratchDatabase, Stage, eventually
from payonce.testing.processes import Child, Processes

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
            assert self.child.running, self.child.last_lines()
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

    async def status(self, method: str, path: str) -> int:
        return (await self.http.request(method, path)).status

    async def paths(self) -> set[str]:
        """As its description says."""
        return set((await self.ask("GET", "/openapi.json"))["paths"])


@dataclass(frozen=True)
class Databases:
    """One of each service, or the same for both."""

    subscriptions: ScratchDatabase
    payments: ScratchDatabase

    @property
    def are_two(self) -> bool:
        return self.subscriptions != self.payments

    def environment(self, role: str) -> dict[str, str]:
        """What a process of the role, and a command beside it, is given."""
        name = role.partition(".")[2]
        database: ScratchDatabase = getattr(self, name)
        return {"DATABASE_URL": database.service_url, **({"BILLING_DATABASE": name} if self.are_two else {})}


@asynccontextmanager
async def deployed(
    processes: Processes, databases: Databases, folder: Path, redis_url: str | None = None
) -> AsyncIterator[tuple[Running, Running]]:
    with reserved_ports(2) as ports:
        shared = {
            "JWT_SECRET_KEY": "j" * 32,
            "WEBHOOK_SIGNING_SECRET": "w" * 32,
            "PAYONCE_WEBHOOK_PRIVATE": "true",
            "PAYONCE_KEYS": f"k1:{base64.b64encode(bytes(32)).decode()}",
            "SUBSCRIPTION_SERVICE_URL": f"http://127.0.0.1:{ports[0]}",
            "PAYMENT_SERVICE_URL": f"http://127.0.0.1:{ports[1]}",
        }
        services = []
        for number, (roles, port) in enumerate(zip((SUBSCRIPTIONS, PAYMENTS), ports, strict=True)):
            http = HttpClient(roles[0], f"http://127.0.0.1:{port}", timeout_s=WITHIN_S, allow_private=True)
            given = {**shared, **databases.environment(roles[0]), "PAYONCE_DATA_DIR": str(folder / roles[0])}
            if redis_url is not None:
                # Queues of two databases do not lie in one Redis database: each refuses the other's.
                given["REDIS_URL"] = f"{redis_url.rpartition('/')[0]}/{number if databases.are_two else 0}"
            services.append(Running(processes, roles, port, given, http))
        subscriptions, payments = services
        async with subscriptions.http, payments.http:
            yield subscriptions, payments


async def key_for(s: Stage, *scopes: str) -> str:
    async with s.begin() as tx:
        return (await make_key(tx, "merchant", scopes, "tester")).secret
