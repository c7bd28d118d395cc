"""The crash scenarios of payouts, from the first message to the end, judged by the books of exchange and chain."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, NamedTuple

from payonce.engine.database.connections import Database
from payonce.engine.effects import Answer, EffectRecord, Review
from payonce.engine.janitors import Janitor
from payonce.engine.ledger import Account, balance
from payonce.engine.ledger.model import Reads
from payonce.engine.messages.transaction import NotifyingFeed, Tx, begin
from payonce.engine.outbox import Relay
from payonce.kit.http import HttpClient
from payonce.kit.http.transport import Transport
from payonce.kit.money import Amount
from payonce.services.payouts import INVARIANTS, ledger
from payonce.services.payouts.api.webhook import PayoutOrder
from payonce.services.payouts.domain.config import PayoutConfig
from payonce.services.payouts.domain.pricing import fee_and_rest
from payonce.services.payouts.handlers.estimator import price_payout
from payonce.services.payouts.handlers.hostpay import pay_swap
from payonce.services.payouts.handlers.orchestrator import record_swap, value_payout
from payonce.services.payouts.handlers.payment_follow import follow_payment
from payonce.services.payouts.handlers.swapper import create_swap
from payonce.services.payouts.handlers.wallet import HostWallet
from payonce.services.payouts.model import ETH, USDT, State
from payonce.services.payouts.policies import FOLLOW, KEEPING
from payonce.services.payouts.schedules import FORGOTTEN_AFTER_S, PUT_BACK, put_back_payouts
from payonce.services.payouts.store.orders import receive
from payonce.testing.crash.scenario import ScenarioOptions
from payonce.vendors.changenow.books import AT_ONCE
from payonce.vendors.changenow.client import ChangeNowClient
from payonce.vendors.changenow.port import Pair
from payonce.vendors.changenow.simulator import ChangeNowSimulator
from payonce.vendors.evm.chain import CHAIN_ID, OUTSIDE, Chain, MinedTransaction
from payonce.vendors.evm.client import EvmClient
from payonce.vendors.evm.simulated_key import SimulatedKey
from payonce.vendors.evm.simulator import ChainSimulator

EXCHANGE, NODE = "changenow.test", "chain.test"
CLIENT: Final = "bc1qw508d6qejxtdg4y5r3zarvary0c5xw7kv8f3t4"
DIRECT_CLIENT: Final = "0x" + "12" * 20
BLOCK_S: Final = 12.0
OPENING: Final = Amount.from_decimal("100", ETH)
PRICE: Final = Amount.from_decimal("100", USDT)
TO_BTC: Final = Pair("eth", "eth", "btc", "btc")
LEAST, MOST = Decimal("0.001"), Decimal("0.03")
"""The exchange's range in scenarios with parts: a payout of the price takes two parts."""
FOLLOWED: Final = FOLLOW.queue
# The clock is fixed, so due messages run at once. Ends are logged, so that they can be counted.
HANDLERS: Final = tuple(
    replace(each, policy=replace(each.policy, rate=None, concurrency=None, log="all"))
    for each in (price_payout, value_payout, create_swap, record_swap, pay_swap, follow_payment, put_back_payouts)
)

Simulators = Mapping[str, Any]


class OrderedPayout(NamedTuple):
    name: str
    """Part of the crash points' names, the same in every run."""
    client: str
    price: Amount = PRICE
    parts: int = 1
    """The number of exchanges that carry it."""

    @property
    def direct(self) -> bool:
        """Whether the wallet pays the client directly, without an exchange."""
        return self.client.startswith("0x")


class PayoutsScenario:
    """One payout, from its order to the client's money.

    With `lost` it begins without a message, as after a purge, and the task service loses all tasks when a process
    crashes: the service's janitor and the refill have to finish it."""

    components = (("cloudtasks", "payonce.taskserver"), ("payouts", "payonce.services.payouts"))
    handlers = HANDLERS
    invariants = INVARIANTS

    def __init__(self, name: str, payouts: Sequence[OrderedPayout], *, lost: bool = False) -> None:
        self.name = name
        self.options = ScenarioOptions(leases_pass=True, wipes=lost)
        self._payouts = payouts
        self._lost = lost
        self._clients = sorted(each.client for each in payouts if not each.direct for _ in range(each.parts))
        """The clients whom the exchange pays, one entry per part."""
        self._payments = sum(each.parts for each in payouts)

    def simulators(self, now: Callable[[], datetime]) -> Simulators:
        exchange = ChangeNowSimulator(clock=now, seed=1, limit_per_s=None, pace=AT_ONCE)
        if any(each.parts > 1 for each in self._payouts):
            exchange.set_range(TO_BTC, LEAST, MOST)
        chain = Chain(clock=now, block_s=BLOCK_S)
        chain.fund(_key().address, OPENING)

        async def tell(mined: MinedTransaction) -> None:
            if mined.sender != OUTSIDE and exchange.books.at_address(mined.transaction.to) is not None:
                exchange.deposit(mined.transaction.to, "eth", mined.amount.to_decimal(), mined.hash)

        return {EXCHANGE: exchange, NODE: ChainSimulator(chain, watcher=tell)}

    def resources(self, reach: Callable[[str], Transport], database: Database, feed: NotifyingFeed) -> Sequence[object]:
        exchange, node = (
            HttpClient(host.partition(".")[0], f"https://{host}", transport=reach(host)) for host in (EXCHANGE, NODE)
        )
        wallet = EvmClient(node, _key())
        return [
            ChangeNowClient(exchange, "key"),
            PayoutConfig((b"key",), wallet.address),
            HostWallet(wallet, database, "explored", market_s=0.0),
        ]

    def relays(self, reach: Callable[[str], Transport]) -> Sequence[Relay]:
        return ()

    def janitors(self, database: Database, feed: NotifyingFeed) -> Sequence[Janitor]:
        async def look_later() -> None:
            async with begin(database, feed) as tx:
                await tx.send(KEEPING, {}, action=PUT_BACK, delay_s=FORGOTTEN_AFTER_S + 1)

        return (Janitor(PUT_BACK, FORGOTTEN_AFTER_S, look_later),)

    async def set_up(self, tx: Tx) -> None:
        for number, each in enumerate(self._payouts, start=1):
            fee, rest = fee_and_rest(each.price, Decimal(3))
            coin = "eth" if each.direct else "btc"
            asked = PayoutOrder(f"pay-{number}", 7, "-100", each.client, None, False, coin, coin, each.price, fee, rest)
            await receive(tx, asked, each.name)
        if self._lost:
            await tx.execute("delete from payonce.outbox")

    def decide(self, review: Review, simulators: Simulators) -> tuple[Answer, Any, str | None]:
        raise AssertionError(f"no step of a payout has to ask a person, and this one did: {review.question}")

    async def answered(self, tx: Tx, effect: EffectRecord, answer: Answer) -> None:
        return None

    def happened(self, simulators: Simulators) -> Counter[str]:
        """Payments of the wallet by destination, and payments of the exchange to clients."""
        paid = Counter(f"{each.address} by the exchange" for each in simulators[EXCHANGE].settle_all().payouts)
        for each in _sent(simulators[NODE].chain):
            paid[f"{each.transaction.to} by the wallet"] += 1
        if sum(paid.values()) > self._payments + len(self._clients):
            # Two deposits at two addresses also pay one client twice.
            paid["the payout"] = 2
        for payout in self._payouts:
            paid[f"{payout.client} by the exchange"] -= payout.parts - 1
        return paid

    def expected_parked(self) -> int:
        return 0

    async def check(self, read: Reads, simulators: Simulators) -> list[str]:
        chain: Chain = simulators[NODE].chain
        states = [State(row["state"]) for row in await read.fetch("select state from payouts.payouts")]
        finished = [State.FINISHED] * len(self._payouts)
        found = [] if states == finished else [f"the payout is {', '.join(states)}"]
        ours = OPENING + await balance(read, Account(ledger.HOST_WALLET, ETH))
        if ours != (theirs := chain.balance(_key().address, ETH)):
            found.append(f"the wallet holds {ours} by our books, and {theirs} by the chain's")
        for path in (ledger.AT_EXCHANGE, ledger.OWED):
            if left := await balance(read, Account(path, ETH)):
                found.append(f"{left} are left in {path}")
        followed = await read.fetchval(
            "select count(*) from payonce.job_logs where queue = $1 and status = 'success'", FOLLOWED
        )
        if followed != (looks := self._payments + len(self._clients)):
            found.append(f"{followed} messages followed the payment to its end, not {looks}")
        clients = sorted(each.address for each in simulators[EXCHANGE].settle_all().payouts)
        if clients != self._clients:
            found.append(f"the exchange paid {clients}")
        return found


def _key() -> SimulatedKey:
    return SimulatedKey("host", CHAIN_ID)


def _sent(chain: Chain) -> list[MinedTransaction]:
    return [each for each in chain.transfers(final=False) if each.sender != OUTSIDE]


SCENARIOS: Final = (
    PayoutsScenario("payout", [OrderedPayout("payout", CLIENT)]),
    PayoutsScenario("payout-direct", [OrderedPayout("payout-direct", DIRECT_CLIENT)]),
    PayoutsScenario("payout-lost", [OrderedPayout("payout-lost", DIRECT_CLIENT)], lost=True),
    PayoutsScenario("payout-split", [OrderedPayout("payout-split", CLIENT, parts=2)]),
)
