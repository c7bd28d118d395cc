"""Payouts on one database with the exchange in this process, worked through step by step on a clock moved by hand."""

import hmac
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from payonce.engine.audit import Severity, notes
from payonce.engine.ledger import Account, balance
from payonce.engine.messages.process import Worker
from payonce.kit.http import HttpClient
from payonce.kit.money import Amount
from payonce.services.payouts import INVARIANTS, ROLES, PayoutConfig, ledger
from payonce.services.payouts.api.webhook import PayoutOrder, read_webhook
from payonce.services.payouts.handlers.wallet import HostWallet
from payonce.services.payouts.model import ETH, USDT, Payout, State, Swap, SwapState
from payonce.services.payouts.policies import QUEUES
from payonce.services.payouts.store import payouts
from payonce.services.payouts.store import swaps as swap_store
from payonce.services.payouts.store.currencies import replace_currencies
from payonce.services.payouts.store.orders import Intake, check_currency, receive
from payonce.testing import OpenStage, Stage
from payonce.testing.faults import Script
from payonce.testing.faulty import Draws, Faulty
from payonce.vendors.changenow.client import ChangeNowClient
from payonce.vendors.changenow.port import Currency, Pair
from payonce.vendors.changenow.prices import LISTINGS
from payonce.vendors.changenow.simulator import ChangeNowSimulator
from payonce.vendors.evm.chain import Chain
from payonce.vendors.evm.client import EvmClient
from payonce.vendors.evm.simulated_key import SimulatedKey
from payonce.vendors.evm.simulator import ChainSimulator

KEY: Final = b"a key that is agreed with the caller"
HOST_WALLET: Final = "0x" + "ab" * 20
CLIENT: Final = "0x" + "12" * 20
BTC_CLIENT: Final = "bc1qw508d6qejxtdg4y5r3zarvary0c5xw7kv8f3t4"
TERMS: Final = PayoutConfig((KEY,), HOST_WALLET)
PATIENCE_S: Final = 3_600.0
TO_BTC: Final = Pair("eth", "eth", "btc", "btc")
UP_TO_HOSTPAY: Final = ("orchestrator", "estimator", "swapper")
PRICING: Final = Pair("usdt", "eth", "eth", "eth")


@dataclass
class ExchangesClock:
    """The exchange's clock goes with the store's."""

    now: datetime

    def __call__(self) -> datetime:
        return self.now


@dataclass
class Office:
    s: Stage
    clock: ExchangesClock
    changenow: ChangeNowSimulator
    door: Faulty
    worker: Worker
    client: ChangeNowClient
    config: PayoutConfig = field(default=TERMS)

    async def order(self, **fields: Any) -> Intake:
        """As the webhook does it."""
        asked = await self.asked(**fields)
        await check_currency(self.s.read, asked)
        async with self.s.begin() as tx:
            return await receive(tx, asked)

    async def asked(self, **fields: Any) -> PayoutOrder:
        now = await self.s.clock.now()
        body = webhook(now, **fields)
        return read_webhook(self.config, signed(body), body, now)

    async def run(self, patience_s: float = PATIENCE_S) -> None:
        """From one due time to the next until nothing is left to do."""
        await self.s.clock.run_to(await self.s.clock.now() + timedelta(seconds=patience_s), self.drain)

    async def drain(self) -> None:
        self.clock.now = await self.s.clock.now()
        await self.door.deliver()
        await self.s.drain(self.worker)

    async def payout(self, taken: Intake | str) -> Payout:
        return await payouts.payout(self.s.read, taken if isinstance(taken, str) else taken.payout.id)

    async def state(self, taken: Intake | str) -> State:
        return (await self.payout(taken)).state

    async def swaps(self, taken: Intake) -> list[Swap]:
        return await swap_store.active_swaps(self.s.read, taken.payout.id)

    async def hostpay_told(self) -> list[dict[str, Any]]:
        """What hostpay would find in its queue."""
        rows = await self.s.owner.fetch(
            "select payload from payonce.messages where queue = 'gcsplit-hostpay-trigger-queue' order by id"
        )
        return [json.loads(row["payload"]) for row in rows]

    async def pay(self, swap: Swap, gas: Amount | None = None) -> None:
        """What hostpay does of a swap, as far as our tables go: the row, the payment, the end."""
        async with self.s.begin() as tx:
            await tx.execute(
                """
                insert into payouts.split_payout_hostpay
                    (unique_id, cn_api_id, from_currency, from_network, from_amount, payin_address)
                values ($1, $2, 'eth', 'eth', $3, $4)
                """,
                swap.unique_id,
                swap.cn_api_id,
                swap.amount.to_decimal(),
                swap.payin_address,
            )
            paying = await swap_store.advance(tx, swap, SwapState.PAYING)
        if not swap.direct:
            assert swap.payin_address is not None
            self.changenow.deposit(swap.payin_address, "eth", swap.amount.to_decimal(), f"0x{swap.cn_api_id}")
        async with self.s.begin() as tx:
            paid = await swap_store.advance(tx, paying, SwapState.PAID_IN)
            if (posting := ledger.paid_in(paid, gas or Amount.zero(ETH))) is not None:
                await tx.post(posting)

    async def finish(self, swap: Swap) -> None:
        async with self.s.begin() as tx:
            await swap_store.finish(tx, await swap_store.locked_swap(tx, swap.id))

    async def balance(self, path: str, asset: Any = ETH) -> Amount:
        return await balance(self.s.read, Account(path, asset))

    async def broken(self) -> dict[str, list[Any]]:
        """Every invariant that does not hold, with the rows that break it."""
        found = {name: await self.s.owner.fetch(query) for name, query in INVARIANTS.items()}
        return {name: [dict(row) for row in rows] for name, rows in found.items() if rows}

    async def loud(self) -> list[str]:
        return [note.text for note in await notes(self.s.read, severity=Severity.ERROR)]

    async def forget_messages(self) -> None:
        """What a task service does that loses its tasks."""
        await self.s.owner.execute("delete from payonce.messages")


def webhook(now: datetime, **fields: Any) -> bytes:
    """The body of a webhook; a field that is None is left out."""
    body = {
        "payment_id": "pay-1",
        "user_id": 6_271_402_111,
        "closed_channel_id": "-1003296084379",
        "wallet_address": BTC_CLIENT,
        "payout_currency": "btc",
        "payout_network": "btc",
        "subscription_price": "100.00",
        "timestamp": int(now.timestamp()),
        **fields,
    }
    return json.dumps({name: value for name, value in body.items() if value is not None}).encode()


def signed(body: bytes, key: bytes = KEY) -> str:
    return hmac.new(key, body, "sha256").hexdigest()


def eth(text: str) -> Amount:
    return Amount.from_decimal(Decimal(text), ETH)


def usdt(text: str) -> Amount:
    return Amount.from_decimal(Decimal(text), USDT)


async def keep_list(s: Stage) -> None:
    """What the exchange changes, as it was learned before, so that calls to it are those of the test."""
    async with s.begin() as tx:
        await replace_currencies(
            tx, [Currency(each.ticker, each.network, each.name, each.has_extra_id) for each in LISTINGS.values()]
        )


@asynccontextmanager
async def open_office(
    stage: OpenStage,
    draws: Draws | None = None,
    *,
    config: PayoutConfig = TERMS,
    roles: Sequence[str] = UP_TO_HOSTPAY,
    listed: bool = True,
    external: Callable[[Stage], AbstractAsyncContextManager[object]] | None = None,
    **how: Any,
) -> AsyncIterator[Office]:
    """`external` opens what somebody's own GCHostPay is told by; then there is no wallet."""
    async with stage() as s:
        clock = ExchangesClock(await s.clock.freeze())
        simulator = ChangeNowSimulator(clock=clock, seed=1, limit_per_s=None, **how)
        door = Faulty(simulator, draws or Script([]))
        node = ChainSimulator(Chain(clock=clock))
        async with (
            HttpClient("changenow", "https://changenow.example", transport=door) as http,
            HttpClient("node", "https://node.example", transport=node) as to_node,
        ):
            wallet = EvmClient(to_node, SimulatedKey("host", node.chain.chain_id))
            client = ChangeNowClient(http, "key")
            handlers = [
                # The rate is another test's: here everything that is due runs at once.
                replace(handler, policy=replace(handler.policy, rate=None, concurrency=None))
                for role in roles
                for handler in ROLES[role]
            ]
            await s.feed.declare(list(QUEUES))
            if listed:
                await keep_list(s)
            async with AsyncExitStack() as stack:
                payer: object = HostWallet(wallet, s.database, "office")
                if external is not None:
                    payer = await stack.enter_async_context(external(s))
                worker = await s.worker(*handlers, resources=[client, config, payer])
                yield Office(s, clock, simulator, door, worker, client, config)
