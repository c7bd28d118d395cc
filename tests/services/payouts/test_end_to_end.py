"""From the signed webhook to the finished payout: real HTTP, Google's client, our Cloud Tasks server, four roles."""

import asyncio
import hashlib
import hmac
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from payonce.app.process import App
from payonce.app.registry import all_migrations
from payonce.engine.database.migrate import migrate
from payonce.engine.database.sessions import connect
from payonce.engine.ledger import Account, balance
from payonce.http.server import listening
from payonce.kit.http import HttpClient, Response
from payonce.services.payouts import ledger
from payonce.services.payouts.demo.simulators import OPENING, DemoSimulators, SimulatorOptions, open_simulators
from payonce.services.payouts.model import ETH
from payonce.settings import load_settings
from payonce.testing import Clock, ScratchDatabase, Servers
from payonce.testing.eventually import eventually
from payonce.vendors.changenow.books import AT_ONCE

ROLES = [
    "payouts.orchestrator",
    "payouts.estimator",
    "payouts.swapper",
    "payouts.hostpay",
    "cloudtasks.server",
]
BTC_CLIENT = "bc1qw508d6qejxtdg4y5r3zarvary0c5xw7kv8f3t4"
ETH_CLIENT = "0x" + "ab" * 20
STEP_S = 20.0
WITHIN_S = 100.0
ROUNDS_MAX = 4

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def database(servers: Servers) -> Iterator[ScratchDatabase]:
    with servers.of().lent() as scratch:
        yield scratch


class House:
    """A process of all roles, and the world around it."""

    def __init__(self, app: App, world: DemoSimulators, clock: Clock, http: HttpClient) -> None:
        self.app = app
        self.world = world
        self.clock = clock
        self.http = http

    async def order(self, payment_id: str = "pay-1", **fields: Any) -> Response:
        document = {
            "payment_id": payment_id,
            "user_id": 7_000_000_001,
            "closed_channel_id": "-1001234567890",
            "wallet_address": BTC_CLIENT,
            "payout_currency": "btc",
            "payout_network": "btc",
            "subscription_price": "100",
            "timestamp": int((await self.clock.now()).timestamp()),
            **fields,
        }
        body = msgspec.json.encode(document)
        signature = hmac.new(self.world.signing_key, body, hashlib.sha256).hexdigest()
        headers = {"X-Webhook-Signature": signature, "Content-Type": "application/json"}
        return await self.http.request("POST", "/", body=body, headers=headers)

    async def ends(self, payment_id: str, state: str) -> None:
        async def ended() -> bool:
            await self.clock.advance(STEP_S)
            self.world.clock.advance(STEP_S)
            await self.world.carry()
            return bool(await self.state(payment_id) == state)

        await eventually(ended, WITHIN_S, f"{payment_id} becomes {state}")

    async def state(self, payment_id: str) -> Any:
        return await self.app.read.fetchval("select state from payouts.payouts where payment_id = $1", payment_id)

    async def count(self, table: str) -> int:
        found: int = await self.app.read.fetchval(f"select count(*) from {table}")
        return found


@asynccontextmanager
async def open_house(database: ScratchDatabase, folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[House]:
    owner = await connect(database.owner_url)
    try:
        await migrate(owner, all_migrations())
    finally:
        await owner.close()
    async with open_simulators(SimulatorOptions(pace=AT_ONCE)) as world, Clock.open(database.owner_url) as clock:
        for name, value in {**world.environment, "DATABASE_URL": database.service_url}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("PAYONCE_DATA_DIR", str(folder))
        async with (
            App.open(load_settings(), ROLES) as app,
            listening(app, "127.0.0.1", 0) as port,
            HttpClient("payonce", f"http://127.0.0.1:{port}", allow_private=True) as http,
        ):
            app.start()
            try:
                yield House(app, world, clock, http)
            finally:
                await app.stop()


async def test_a_webhook_becomes_a_payout_that_the_client_has(
    database: ScratchDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_house(database, tmp_path, monkeypatch) as house:
        answer = await house.order()
        assert answer.status == 200, answer.excerpt()
        await house.ends("pay-1", "finished")

        exchange = house.world.changenow.settle_all()
        [paid] = exchange.payouts
        assert paid.address == BTC_CLIENT
        [deposit] = exchange.deposits
        [transfer] = house.world.chain.transfers()[:1]
        assert (transfer.sender, transfer.hash) == (house.world.wallet, deposit.tx_hash)
        for table in ("split_payout_request", "split_payout_que", "split_payout_hostpay"):
            assert await house.count(f"payouts.{table}") == 1
        ours = await balance(house.app.read, Account(ledger.HOST_WALLET, ETH))
        assert OPENING + ours == house.world.chain.balance(house.world.wallet, ETH)
        report = await house.app.audit()
        assert [finding.text for finding in report.findings] == []


async def test_the_same_webhook_twice_is_one_payout(
    database: ScratchDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_house(database, tmp_path, monkeypatch) as house:
        first, again = await house.order(), await house.order()
        assert (first.status, again.status) == (200, 200)
        assert first.json()["payout_id"] == again.json()["payout_id"]
        assert (await house.order(subscription_price="101")).status == 409
        await house.ends("pay-1", "finished")
        assert len(house.world.changenow.settle_all().payouts) == 1


async def traced(name: str) -> tuple[int | None, int]:
    """The exit code of `payonce trace`, and how many runs it told of."""
    command = (sys.executable, "-m", "payonce", "trace", name, "--json")
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=DEVNULL)
    told, _ = await process.communicate()
    return process.returncode, len(msgspec.json.decode(told)["entries"])


@pytest.mark.full
async def test_a_payout_is_traced_by_the_names_that_its_callers_have_for_it(
    database: ScratchDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_house(database, tmp_path, monkeypatch) as house:
        payout_id = (await house.order()).json()["payout_id"]
        await house.ends("pay-1", "finished")
        unique_id = await house.app.read.fetchval("select unique_id from payouts.payouts where id = $1", payout_id)
        # Nothing more falls due; what was under way may still end between two looks, and then all are taken again.
        await house.clock.freeze()
        for _ in range(ROUNDS_MAX):
            told = {name: await traced(name) for name in (payout_id, "pay-1", unique_id)}
            if len(set(told.values())) == 1:
                break
        [(code, runs)] = set(told.values())
        assert code == 0
        assert runs > 0
        assert await traced("pay-2") == (1, 0)


async def test_ether_goes_straight_to_the_client(
    database: ScratchDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_house(database, tmp_path, monkeypatch) as house:
        fields = {"wallet_address": ETH_CLIENT, "payout_currency": "eth", "payout_network": "eth"}
        assert (await house.order(**fields)).status == 200
        await house.ends("pay-1", "finished")
        assert [each.transaction.to for each in house.world.chain.transfers()] == [ETH_CLIENT]
        assert not house.world.changenow.books.entries


async def test_an_exchange_that_is_down_delays_and_loses_nothing(
    database: ScratchDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_house(database, tmp_path, monkeypatch) as house:
        house.world.changenow.take_down(120.0)
        assert (await house.order()).status == 200
        await house.ends("pay-1", "finished")
        assert len(house.world.changenow.settle_all().payouts) == 1
