"""An external hostpay in the crash explorer: wherever a process dies, the operator's own GCHostPay gets one task per
swap."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from payonce.engine.database.connections import Database
from payonce.engine.ledger import Account, balance
from payonce.engine.ledger.model import Reads
from payonce.engine.messages.transaction import NotifyingFeed, Tx
from payonce.kit.http import HttpClient
from payonce.kit.http.transport import Transport
from payonce.services.payouts import INVARIANTS, ledger
from payonce.services.payouts.api.webhook import PayoutOrder
from payonce.services.payouts.crash.scenarios import CLIENT, EXCHANGE, PRICE
from payonce.services.payouts.domain.config import PayoutConfig
from payonce.services.payouts.domain.pricing import fee_and_rest
from payonce.services.payouts.handlers.estimator import price_payout
from payonce.services.payouts.handlers.external_hostpay import ExternalHostPay, create_hostpay_task, follow_exchange
from payonce.services.payouts.handlers.orchestrator import record_swap, value_payout
from payonce.services.payouts.handlers.swapper import create_swap
from payonce.services.payouts.messages.tokens import HostPay
from payonce.services.payouts.model import ETH, State
from payonce.services.payouts.store.orders import receive
from payonce.testing import ScratchServer
from payonce.testing.crash import Mode, PlainScenario, explore, parse_point
from payonce.vendors.changenow.books import AT_ONCE
from payonce.vendors.changenow.client import ChangeNowClient
from payonce.vendors.changenow.simulator import ChangeNowSimulator

TASKS: Final = "tasks.test"
HANDLERS: Final = tuple(
    replace(each, policy=replace(each.policy, rate=None, concurrency=None, log="all"))
    for each in (price_payout, value_payout, create_swap, record_swap, create_hostpay_task, follow_exchange)
)


class TaskService:
    """Makes a task of each name once, and calls GCHostPay, which pays what it is told to."""

    def __init__(self, exchange: ChangeNowSimulator) -> None:
        self.calls: Counter[str] = Counter()
        self._names: set[str] = set()
        self._exchange = exchange
        self._app = Starlette(routes=[Route("/tasks", self._create, methods=["POST"])])

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._app(scope, receive, send)

    async def _create(self, request: Request) -> JSONResponse:
        told = await request.json()
        if told["name"] in self._names:
            return JSONResponse({}, 409)
        self._names.add(told["name"])
        self.calls[told["cn_api_id"]] += 1
        amount = Decimal(told["from_amount"])
        self._exchange.deposit(told["payin_address"], "eth", amount, f"0x{self.calls.total():064x}")
        return JSONResponse({})


class ExternalScenario(PlainScenario):
    name = "payout-external"
    components = (("payouts", "payonce.services.payouts"),)
    handlers = HANDLERS
    invariants = INVARIANTS

    def simulators(self, now: Callable[[], datetime]) -> Mapping[str, Any]:
        exchange = ChangeNowSimulator(clock=now, seed=1, limit_per_s=None, pace=AT_ONCE)
        return {EXCHANGE: exchange, TASKS: TaskService(exchange)}

    def resources(self, reach: Callable[[str], Transport], database: Database, feed: NotifyingFeed) -> Sequence[object]:
        exchange, tasks = (HttpClient(host, f"https://{host}", transport=reach(host)) for host in (EXCHANGE, TASKS))

        async def create(name: str, fields: HostPay) -> str:
            told = {
                "name": name,
                "cn_api_id": fields.cn_api_id,
                "payin_address": fields.payin_address,
                "from_amount": str(fields.from_amount),
            }
            answer = await tasks.request("POST", "/tasks", json=told)
            assert answer.status in (200, 409)
            return name

        async def delete(name: str) -> None:
            raise AssertionError(f"nobody said that {name} was not paid")

        terms = PayoutConfig((b"key",), "0x" + "ab" * 20, external_hostpay=True)
        return [ChangeNowClient(exchange, "key"), terms, ExternalHostPay(create, delete)]

    async def set_up(self, tx: Tx) -> None:
        fee, rest = fee_and_rest(PRICE, Decimal(3))
        asked = PayoutOrder("pay-1", 7, "-100", CLIENT, None, False, "btc", "btc", PRICE, fee, rest)
        await receive(tx, asked, "payout-external")

    def happened(self, simulators: Mapping[str, Any]) -> Mapping[str, int]:
        service: TaskService = simulators[TASKS]
        return Counter({"GCHostPay": service.calls.total()})

    async def check(self, read: Reads, simulators: Mapping[str, Any]) -> list[str]:
        found = []
        if (state := await read.fetchval("select state from payouts.payouts")) != State.FINISHED:
            found.append(f"the payout is {state}")
        if (called := simulators[TASKS].calls.total()) != 1:
            found.append(f"GCHostPay was called {called} times")
        clients = [each.address for each in simulators[EXCHANGE].settle_all().payouts]
        if clients != [CLIENT]:
            found.append(f"the exchange paid {clients}")
        for path in (ledger.AT_EXCHANGE, ledger.OWED):
            if left := await balance(read, Account(path, ETH)):
                found.append(f"{left} are left in {path}")
        return found


@pytest.mark.parametrize(
    "point",
    [
        # The intent is recorded, but its process died before it created the task.
        "payout-external @ payout-external engine.effects.send:Run.intent #2 @ after",
        # Neither the intent nor the task.
        "payout-external @ payout-external engine.effects.send:Run.intent #2 @ before",
        # It stands still until somebody else has handed the swap over.
        "payout-external @ payout-external engine.effects.send:Run.intent #2 @ stopped",
        "payout-external @ payout-external engine.effects.send:Run.intent #2 @ late",
    ],
)
def test_gchostpay_is_told_once(postgres: ScratchServer, point: str) -> None:
    report = explore([ExternalScenario()], server=postgres, only=parse_point(point))
    assert report.sound, report.summary()


@pytest.mark.full
@pytest.mark.timeout(600)
def test_nothing_is_stuck_wherever_somebody_stands_still_or_is_late(postgres: ScratchServer) -> None:
    report = explore([ExternalScenario()], server=postgres, modes=(Mode.STOPPED, Mode.LATE), processes=2)
    assert report.sound, report.summary()
    assert len(report.results) >= 60
