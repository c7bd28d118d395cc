"""Hostpay in a process of its own, which dies without a word where a test says so. Run as a module."""

import os
import signal
import sys
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import uvloop

from payonce.engine.controls import CHECKS
from payonce.engine.database.connections import Database
from payonce.engine.database.notifier import Notifier
from payonce.engine.database.sessions import PlainConnection
from payonce.engine.messages.process import Worker
from payonce.kit.http import HttpClient
from payonce.kit.money import Asset
from payonce.queues.postgres import PostgresFeed, PostgresQueue
from payonce.services.payouts.handlers.hostpay import pay_swap
from payonce.services.payouts.handlers.payment_follow import follow_payment
from payonce.services.payouts.handlers.wallet import HostWallet
from payonce.vendors.changenow.client import ChangeNowClient
from payonce.vendors.evm.client import EvmClient
from payonce.vendors.evm.port import BroadcastResult, Market, Signed
from payonce.vendors.evm.simulated_key import SimulatedKey


class Duty(msgspec.Struct, kw_only=True):
    url: str
    node_url: str
    exchange_url: str
    chain_id: int
    dies_at: int = 0
    """The crossing at which it dies, counted from the first look at the chain; 0: it does not."""


class Crossings:
    """Before and after every commit and every send."""

    def __init__(self, dies_at: int) -> None:
        self._dies_at = dies_at
        self._count = 0
        self.begun = False

    def cross(self, place: str) -> None:
        self._count += self.begun
        if self._count == self._dies_at > 0:
            print(f"dies {place}", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)


class MortalWallet(EvmClient):
    crossings: Crossings

    async def market(self, asset: Asset) -> Market:
        self.crossings.begun = True
        return await super().market(asset)

    async def broadcast(self, signed: Signed) -> BroadcastResult:
        self.crossings.cross("before the broadcast")
        taken = await super().broadcast(signed)
        self.crossings.cross("after the broadcast")
        return taken


async def serve(duty: Duty) -> None:
    crossings = Crossings(duty.dies_at)

    class MortalConnection(PlainConnection):
        async def execute(self, query: str, *arguments: Any, **options: Any) -> str:
            if not query.startswith("COMMIT"):
                return str(await super().execute(query, *arguments, **options))
            crossings.cross("before a commit")
            answer = str(await super().execute(query, *arguments, **options))
            crossings.cross("after a commit")
            return answer

    async with (
        Database.open(duty.url, connection_class=MortalConnection) as database,
        Notifier.open(database) as notifier,
        HttpClient("node", duty.node_url, allow_private=True) as node,
        HttpClient("changenow", duty.exchange_url, allow_private=True) as exchange,
    ):
        name = f"hostpay-{os.getpid()}"
        wallet = MortalWallet(node, SimulatedKey("host", duty.chain_id))
        wallet.crossings = crossings
        host = HostWallet(wallet, database, name, market_s=0.0)
        unlimited = [
            replace(each, policy=replace(each.policy, rate=None, concurrency=None))
            for each in (pay_swap, follow_payment)
        ]
        worker = Worker(
            unlimited,
            database,
            PostgresFeed(database, notifier),
            partial(PostgresQueue, database, notifier, worker=name),
            [ChangeNowClient(exchange, "key"), host],
            slots=4,
            checks=CHECKS,
        )
        print("ready", flush=True)
        await worker.run()


if __name__ == "__main__":
    uvloop.run(serve(msgspec.json.decode(sys.argv[1], type=Duty)))
