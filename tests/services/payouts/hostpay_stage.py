"""Payouts with the exchange and the chain in this process, worked through step by step on a clock moved by hand."""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from payonce.engine import controls
from payonce.engine.ledger import Account, balance
from payonce.engine.messages.model import Message
from payonce.engine.messages.process import Worker
from payonce.engine.messages.work import Handler
from payonce.engine.monitoring.vendor_calls import call_observer
from payonce.kit.http import HttpClient
from payonce.kit.money import Amount
from payonce.queues.postgres import PostgresQueue
from payonce.services.payouts import ledger
from payonce.services.payouts.api.webhook import PayoutOrder
from payonce.services.payouts.decisions.payouts import Decision, Verdict, decision_action
from payonce.services.payouts.domain.config import PayoutConfig
from payonce.services.payouts.handlers.estimator import price_payout
from payonce.services.payouts.handlers.hostpay import pay_swap
from payonce.services.payouts.handlers.next_messages import send_hostpay
from payonce.services.payouts.handlers.orchestrator import record_swap, value_payout
from payonce.services.payouts.handlers.payment_follow import follow_payment
from payonce.services.payouts.handlers.swapper import create_swap
from payonce.services.payouts.handlers.wallet import HostWallet
from payonce.services.payouts.invariants.payouts import INVARIANTS
from payonce.services.payouts.model import ETH, USDT, Payout, State, Swap
from payonce.services.payouts.policies import HOSTPAY
from payonce.services.payouts.store import payouts, swaps, wallet_limits
from payonce.services.payouts.store import wallet as wallet_store
from payonce.services.payouts.store.orders import receive
from payonce.testing import OpenStage, Stage
from payonce.testing.faults import Script
from payonce.testing.faulty import Draws, Faulty
from payonce.vendors.changenow.books import Deposit
from payonce.vendors.changenow.client import ChangeNowClient
from payonce.vendors.changenow.port import Code, Exchange, ExchangeRefused
from payonce.vendors.changenow.simulator import ChangeNowSimulator
from payonce.vendors.evm.chain import OUTSIDE, Chain, MinedTransaction
from payonce.vendors.evm.client import EvmClient
from payonce.vendors.evm.exchange_bridge import ExchangeBridge
from payonce.vendors.evm.simulated_key import SimulatedKey
from payonce.vendors.evm.simulator import ChainSimulator
from tests.services.payouts.payouts_stage import keep_list

OPENING: Final = Amount.from_decimal("100", ETH)
BLOCK_S: Final = 12.0
PATIENCE_S: Final = 2_400.0
BTC_CLIENT: Final = "bc1qw508d6qejxtdg4y5r3zarvary0c5xw7kv8f3t4"
ETH_CLIENT: Final = "0x" + "12" * 20
HANDLERS: Final = (price_payout, value_payout, create_swap, record_swap, pay_swap, follow_payment)
PARKING: Final = (price_payout, value_payout, create_swap, record_swap)
"""Up to the door of hostpay."""


@dataclass
class OutsideClock:
    """The chain's and the exchange's clock go with the store's."""

    now: datetime

    def __call__(self) -> datetime:
        return self.now


@dataclass
class House:
    s: Stage
    clock: OutsideClock
    chain: Chain
    node: Faulty
    changenow: ChangeNowSimulator
    context: Faulty
    bridge: ExchangeBridge
    simulator: ChainSimulator
    wallet: EvmClient
    client: ChangeNowClient
    config: PayoutConfig
    host: HostWallet
    worker: Worker
    hooks: list[Callable[[], Awaitable[None]]] = field(default_factory=list)

    async def order(
        self, number: int = 1, price: str = "100", *, direct: bool = False, usdc_to: str | None = None
    ) -> Payout:
        address, coin, network = (ETH_CLIENT, "eth", "eth") if direct else (BTC_CLIENT, "btc", "btc")
        if usdc_to is not None:
            address, coin, network = usdc_to, "usdc", "eth"
        asked = PayoutOrder(
            f"pay-{number}",
            7_000_000_000 + number,
            f"-100{number}",
            address,
            None,
            False,
            coin,
            network,
            usdt(price),
            usdt("0"),
            usdt(price),
        )
        async with self.s.begin() as tx:
            return (await receive(tx, asked)).payout

    async def waiting_for_hostpay(self, number: int = 1, price: str = "100", *, direct: bool = False) -> Payout:
        """Up to where hostpay is told, without hostpay."""
        payout = await self.order(number, price, direct=direct)
        before = await self.another_worker(*PARKING)
        await self.s.drain(before)
        assert (await self.swap(payout)).triggered_at is not None
        return payout

    async def another_worker(self, *handlers: Handler, host: HostWallet | None = None) -> Worker:
        return await braked_worker(self.s, handlers, [self.client, self.config, host or self.host])

    async def run(self, patience_s: float = PATIENCE_S) -> None:
        await self.s.clock.run_to(await self.s.clock.now() + timedelta(seconds=patience_s), self.drain)

    async def drain(self) -> None:
        self.clock.now = await self.s.clock.now()
        for door in (self.node, self.context):
            await door.deliver()
        await self.bridge.carry(self.simulator)
        for hook in self.hooks:
            await hook()
        await self.s.drain(self.worker)

    async def state(self, payout: Payout) -> State:
        return (await self.payout(payout)).state

    async def payout(self, payout: Payout) -> Payout:
        return await payouts.payout(self.s.read, payout.id)

    async def swap(self, payout: Payout) -> Swap:
        [swap] = await swaps.active_swaps(self.s.read, payout.id)
        return swap

    async def tell_again(self, payout: Payout, put: int = 9) -> None:
        """The message to hostpay once more, as a task service delivers it twice."""
        async with self.s.begin() as tx:
            await send_hostpay(tx, payout, await self.swap(payout), put)

    async def release(self, payout: Payout) -> None:
        """What a person does who lets it go on."""
        await self.decide(payout, Verdict.RELEASE)

    async def decide(self, payout: Payout, verdict: Verdict, by: str = "ann", **said: str) -> None:
        kept = await self.payout(payout)
        asked = Decision(payout_id=payout.id, seen=kept.revision, verdict=verdict, note="go on", **said)
        async with self.s.begin() as tx:
            await controls.submit(tx, decision_action(self.s.admin), asked, by, "looked at it")

    async def message(self, payload: dict[str, Any]) -> None:
        await self.s.feed.put([Message(queue=HOSTPAY.queue, payload=payload)])

    async def grant(self, *, deny: bool = False) -> None:
        async with self.s.begin() as tx:
            [waiting] = await controls.approvals(tx)
            if deny:
                await controls.deny(tx, waiting.id, "bob", "not this one")
        if not deny:
            granted = await self.grant_one(waiting.id)
            assert granted.state is controls.ApprovalState.GRANTED, granted.result

    async def grant_one(self, approval_id: int, by: str = "bob") -> controls.Approval:
        known = (wallet_limits.clearance_action(self.s.admin), decision_action(self.s.admin))
        async with self.s.begin() as tx:
            return await controls.grant(tx, {action.name: action for action in known}, approval_id, by)

    def transfers(self, *, final: bool = True) -> list[MinedTransaction]:
        """Out of the wallet."""
        return [each for each in self.chain.transfers(final=final) if each.sender != OUTSIDE]

    def deposits(self) -> list[Deposit]:
        """What the exchange saw; a client's own address is none of its own."""
        return [each for each in self.changenow.books.deposits if each.exchange_id is not None]

    async def hostpay_row(self) -> Any:
        [row] = await self.s.owner.fetch("select * from payouts.split_payout_hostpay")
        return row

    async def job_errors(self) -> str:
        rows = await self.s.owner.fetch(
            "select last_error from payonce.job_logs union all select last_error from payonce.messages"
        )
        return "\n".join(row["last_error"] or "" for row in rows)

    async def attempts(self, payout: Payout) -> int:
        swap = await self.swap(payout)
        return len(await wallet_store.attempts_of(self.s.read, swap.id))

    async def sound(self, *finished: Payout) -> None:
        """Each deposit was made once by the chain's books, and our books are the chain's to the wei."""
        paid = Counter(each.transaction.to for each in self.transfers())
        assert all(count == 1 for count in paid.values()), paid
        nonces = [each.transaction.nonce for each in self.transfers()]
        assert len(set(nonces)) == len(nonces)
        deposits = Counter(each.address for each in self.deposits())
        assert all(count == 1 for count in deposits.values())
        ours = await balance(self.s.read, Account(ledger.HOST_WALLET, ETH))
        assert OPENING + ours == self.chain.balance(self.wallet.address, ETH)
        held = sum(minor for (_, asset), minor in self.chain.balances().items() if asset == ETH)
        assert held == 0
        broken = {name: await self.s.owner.fetch(query) for name, query in INVARIANTS.items()}
        assert not {name: rows for name, rows in broken.items() if rows}
        for payout in finished:
            assert await self.state(payout) is State.FINISHED, (await self.payout(payout)).reason
        if finished:
            assert not await balance(self.s.read, Account(ledger.AT_EXCHANGE, ETH))
            assert not await balance(self.s.read, Account(ledger.OWED, ETH))


def usdt(text: str) -> Amount:
    return Amount.from_decimal(text, USDT)


def eth(text: str) -> Amount:
    return Amount.from_decimal(text, ETH)


def unhurried(handlers: Sequence[Handler]) -> list[Handler]:
    """The rate is another test's: here everything that is due runs at once."""
    return [replace(each, policy=replace(each.policy, rate=None, concurrency=None)) for each in handlers]


async def braked_worker(s: Stage, handlers: Sequence[Handler], resources: Sequence[object]) -> Worker:
    """With the operators' brakes, as in production."""
    run = unhurried(handlers)
    await s.feed.declare([handler.policy for handler in run])
    open_queue = partial(PostgresQueue, s.database, s.notifier, worker="worker-1")
    return Worker(run, s.database, s.feed, open_queue, resources, checks=controls.CHECKS)


@asynccontextmanager
async def open_house(
    stage: OpenStage,
    at_node: Draws | None = None,
    at_exchange: Draws | None = None,
    *,
    opening: Amount = OPENING,
    fee_cap_wei: int = 10**12,
    chain: dict[str, Any] | None = None,
    **exchange: Any,
) -> AsyncIterator[House]:
    async with stage() as s:
        clock = OutsideClock(await s.clock.freeze())
        made = Chain(clock=clock, block_s=BLOCK_S, **(chain or {}))
        key = SimulatedKey("host", made.chain_id)
        made.fund(key.address, opening)
        changenow = ChangeNowSimulator(clock=clock, seed=1, limit_per_s=None, **exchange)
        async with HttpClient("exchange", "https://exchange.example", transport=changenow) as behind:
            bridge = ExchangeBridge(made, behind)
            simulator = ChainSimulator(made, watcher=bridge.notify_deposit)
            node, context = Faulty(simulator, at_node or Script([])), Faulty(changenow, at_exchange or Script([]))
            async with (
                HttpClient("node", "https://node.example", transport=node) as to_node,
                HttpClient("changenow", "https://changenow.example", transport=context) as to_exchange,
            ):
                wallet, client = (
                    EvmClient(to_node, key),
                    ChangeNowClient(to_exchange, "key", watch=call_observer("changenow")),
                )
                config = PayoutConfig((b"key",), key.address)
                host = HostWallet(wallet, s.database, "process-1", market_s=0.0, fee_cap_wei=fee_cap_wei)
                worker = await braked_worker(s, HANDLERS, [client, config, host])
                await keep_list(s)
                yield House(
                    s, clock, made, node, changenow, context, bridge, simulator, wallet, client, config, host, worker
                )


def refusing(code: Code) -> Any:
    async def exchange(_: ChangeNowClient, __: str) -> Exchange:
        raise ExchangeRefused(code, "401 unauthorized")

    return exchange


async def paused(house: House) -> list[str]:
    return [row["name"] for row in await house.s.owner.fetch("select name from payonce.queues where paused")]
