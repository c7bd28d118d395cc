"""The verdict on the payouts of a run by the books of exchange and chain: double, missing and unexplained payments."""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

from payonce.engine.ledger import Account, audit_ledger, balance
from payonce.engine.messages.transaction import Reader
from payonce.kit.money import Amount
from payonce.services.payouts import INVARIANTS
from payonce.services.payouts import ledger as books
from payonce.services.payouts.demo.orders import DemoOrder, Kind
from payonce.services.payouts.demo.simulators import OPENING, DemoSimulators
from payonce.services.payouts.model import ETH, USDT, Hold, State
from payonce.services.payouts.store.refunds import REFUND_FEE_MAX, REFUND_FEE_SHARE
from payonce.vendors.changenow.books import Entry, ExchangeBooks
from payonce.vendors.changenow.port import Status

Outcome = tuple[State, Hold | None]

UNDECIDED: Final[Mapping[Status, Outcome]] = {
    Status.VERIFYING: (State.HELD, Hold.VERIFYING),
    Status.FAILED: (State.REVIEW, Hold.EXCHANGE_FAILED),
}
"""Outcomes of exchanges that neither pay out nor refund: an operator decides about the payout."""

UNPAID: Final[Mapping[Kind, Outcome]] = {
    Kind.SMALL: (State.ACCUMULATING, None),
    Kind.BAD_ADDRESS: (State.HELD, Hold.BAD_ADDRESS),
}
"""Outcomes of orders for which the wallet must not have paid anything."""

GONE: Final = (Status.FINISHED, Status.REFUNDED)
"""The exchange no longer has the money."""


@dataclass(frozen=True)
class PayoutRecord:
    """One payout on our record."""

    payment_id: str
    state: State
    hold: Hold | None
    value: Amount | None
    paid: Amount
    """The amount of its swaps that were paid and not refunded."""


@dataclass(frozen=True)
class Verdict:
    asked: int
    states: Mapping[State, int]
    double_paid: Sequence[str]
    lost: Sequence[str]
    unexplained: Mapping[str, Decimal]
    broken: Sequence[str] = field(default_factory=tuple)
    """Invariants that do not hold, and findings in the ledger."""


async def judge(read: Reader, world: DemoSimulators, orders: Sequence[DemoOrder]) -> Verdict:
    endings = {each.payment_id: each for each in await _payout_records(read)}
    double, lost = find_discrepancies(orders, endings, _paid(world), _undecided_clients(world))
    return Verdict(
        len(orders),
        Counter(each.state for each in endings.values()),
        [*_doubles(world), *double],
        lost,
        await _unexplained(read, world, orders),
        await _broken(read),
    )


def find_discrepancies(
    orders: Sequence[DemoOrder],
    endings: Mapping[str, PayoutRecord],
    paid: Mapping[str, Decimal],
    stopped: Mapping[str, Collection[Outcome]],
) -> tuple[list[str], list[str]]:
    """Payouts paid more than recorded, and those paid less or in a wrong state. `paid` is the net amount that left the
    wallet per address, `stopped` the outcomes at undecided exchanges."""
    double, lost = list[str](), list[str]()
    by_address: defaultdict[str, list[DemoOrder]] = defaultdict(list)
    for order in orders:
        by_address[order.address].append(order)
    for address, group in by_address.items():
        found = [endings[order.payment_id] for order in group if order.payment_id in endings]
        said, seen = sum((each.paid.to_decimal() for each in found), Decimal(0)), paid.get(address, Decimal(0))
        if seen != said:
            told = f"{group[0].payment_id}: {seen.normalize():f} ETH were paid, {said.normalize():f} on record"
            (double if seen > said else lost).append(told)
        for order in group:
            if (wrong := _misplacement(order, endings.get(order.payment_id), stopped.get(address, ()))) is not None:
                lost.append(wrong)
    return double, lost


async def _payout_records(read: Reader) -> list[PayoutRecord]:
    rows = await read.fetch(
        """
        select p.payment_id, p.state, p.hold, p.value_minor, coalesce((
            select sum(h.amount_minor) from payouts.shares h join payouts.swaps s on s.id = h.swap_id
            where h.payout_id = p.id and s.state in ('paid_in', 'finished')), 0) as paid_minor
        from payouts.payouts p
        """
    )
    return [
        PayoutRecord(
            row["payment_id"],
            State(row["state"]),
            None if row["hold"] is None else Hold(row["hold"]),
            None if row["value_minor"] is None else Amount(int(row["value_minor"]), ETH),
            Amount(int(row["paid_minor"]), ETH),
        )
        for row in rows
    ]


def _misplacement(order: DemoOrder, ending: PayoutRecord | None, stopped: Collection[Outcome]) -> str | None:
    """Describes a payout in a wrong state; None if its input and the exchange explain its state."""
    if ending is None:
        return f"{order.payment_id} is not on record"
    wanted: Collection[Outcome] = stopped or {(State.FINISHED, None)}
    if order.kind in UNPAID:
        wanted = {UNPAID[order.kind]}
    named = f"{order.payment_id} ({order.kind})"
    if (ending.state, ending.hold) not in wanted:
        return f"{named} is {ending.state} {ending.hold or ''}".rstrip()
    if order.kind in UNPAID and ending.paid:
        return f"{named} is {ending.state}, and {ending.paid} were paid"
    if ending.state is State.FINISHED and ending.paid != ending.value:
        return f"{named} is finished, and {ending.paid} of {ending.value} were paid"
    return None


def _doubles(world: DemoSimulators) -> list[str]:
    """Deposit addresses that were paid more than once, by the chain and by the exchange."""
    by_chain = Counter(each.transaction.to for each in world.chain.transfers() if each.sender == world.wallet)
    # Direct payments have no exchange.
    by_exchange = Counter(each.exchange_id for each in world.changenow.books.deposits if each.exchange_id is not None)
    return [f"{to} on the chain" for to, times in by_chain.items() if times > 1] + [
        f"{each} at the exchange" for each, times in by_exchange.items() if times > 1
    ]


def _paid(world: DemoSimulators) -> dict[str, Decimal]:
    """By client, the ether that left the wallet and was not, or only partly, refunded."""
    found: defaultdict[str, Decimal] = defaultdict(Decimal)
    for entry, amount in _deposits(world):
        if entry.status is not Status.REFUNDED or _missing(entry):
            found[entry.payout_address] += amount
    for each in world.chain.transfers():
        if each.sender == world.wallet and world.changenow.books.at_address(each.transaction.to) is None:
            found[each.transaction.to] += each.amount.to_decimal()
    return found


def _deposits(world: DemoSimulators) -> list[tuple[Entry, Decimal]]:
    """All deposits at the exchange, including late and repeated ones."""
    books = world.changenow.settle_all()
    return [(books.entries[each.exchange_id], each.amount) for each in books.deposits if each.exchange_id is not None]


def undecided(books: ExchangeBooks) -> dict[str, Outcome]:
    """The expected outcomes of exchanges that neither paid out nor refunded completely."""
    found = dict[str, Outcome]()
    for each in books.entries.values():
        status = Status.FAILED if _missing(each) else each.status
        if status in UNDECIDED:
            found[each.id] = UNDECIDED[status]
    return found


def _missing(entry: Entry) -> Decimal:
    """The amount missing from a refund that is too small for another round: the deposit does not count as refunded."""
    if entry.amount_from is None or entry.refund_amount is None:
        return Decimal(0)
    missing = entry.amount_from - entry.refund_amount
    return missing if missing > min(REFUND_FEE_MAX.to_decimal(), entry.amount_from / REFUND_FEE_SHARE) else Decimal(0)


def _undecided_clients(world: DemoSimulators) -> dict[str, set[Outcome]]:
    """By client; each part of a large payout may have an outcome of its own."""
    books = world.changenow.settle_all()
    found: defaultdict[str, set[Outcome]] = defaultdict(set)
    for exchange_id, stand in undecided(books).items():
        found[books.entries[exchange_id].payout_address].add(stand)
    return found


async def _unexplained(read: Reader, world: DemoSimulators, orders: Sequence[DemoOrder]) -> dict[str, Decimal]:
    """By asset, the difference between our ledger and the books of chain and exchange."""

    async def ours(path: str, asset: Any = ETH) -> Decimal:
        return (await balance(read, Account(path, asset))).to_decimal()

    chain, exchange = world.chain, world.changenow.books
    gas = sum(each.fee_minor for block in chain.blocks.values() for each in block if each.sender == world.wallet)
    held = sum((amount for entry, amount in _deposits(world) if entry.status not in GONE), Decimal(0))
    held += sum(map(_missing, exchange.entries.values()), Decimal(0))
    eth = [
        (OPENING.to_decimal() + await ours(books.HOST_WALLET), chain.balance(world.wallet, ETH).to_decimal()),
        (await ours(books.AT_EXCHANGE), held),
        (await ours(books.NETWORK_FEES), Amount(gas, ETH).to_decimal()),
    ]
    asked = Amount.total((order.amount for order in orders), USDT).to_decimal()
    found = {
        "USDT": abs(await ours(books.COLLECTED, USDT) - asked),
        "ETH": sum((abs(a - b) for a, b in eth), Decimal(0)),
    }
    clients = {order.address for order in orders}
    for each in exchange.payouts:
        code = each.asset.partition(".")[0]
        found[code] = found.get(code, Decimal(0)) + (Decimal(0) if each.address in clients else each.amount)
    return {code: abs(amount) for code, amount in found.items()}


async def _broken(read: Reader) -> list[str]:
    found = [f"{name}: {len(rows)} rows" for name, query in INVARIANTS.items() if (rows := await read.fetch(query))]
    return found + [f"{finding.kind}: {finding.text}" for finding in await audit_ledger(read)]
