"""The judgement over payouts, by the books of exchange and chain: who was paid twice, who not, what is unexplained."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

from payonce.cli.demo.payouts_orders import Kind, Order
from payonce.engine.ledger import Account, audit_ledger, balance
from payonce.engine.transaction import Reader
from payonce.kit.money import Amount
from payonce.services.payouts import INVARIANTS, books
from payonce.services.payouts.model import ETH, USDT, Hold, State
from payonce.standins import OPENING, StandIns
from payonce.vendors.changenow.books import Entry
from payonce.vendors.changenow.port import Status

UNDECIDED: Final = {Status.VERIFYING: Hold.VERIFYING, Status.FAILED: Hold.EXCHANGE_FAILED}
"""Of an exchange that has the money and neither passes it on nor gives it back: a person has the payout."""


@dataclass(frozen=True)
class Ending:
    """How one payout stands on our record."""

    payment_id: str
    state: State
    hold: str | None
    value: Amount | None


@dataclass(frozen=True)
class Verdict:
    asked: int
    states: Mapping[State, int]
    double_paid: Sequence[str]
    lost: Sequence[str]
    unexplained: Mapping[str, Decimal]
    broken: Sequence[str] = field(default_factory=tuple)
    """Invariants that do not hold, and findings in the ledger."""


async def judge(read: Reader, world: StandIns, orders: Sequence[Order]) -> Verdict:
    endings = {each.payment_id: each for each in await _endings(read)}
    double, lost = _doubles(world), []
    by_address: defaultdict[str, list[Order]] = defaultdict(list)
    for order in orders:
        by_address[order.address].append(order)
    paid, undecided = _paid(world), _undecided(world)
    for address, group in by_address.items():
        found = [endings.get(order.payment_id) for order in group]
        least, most = (sum((bound(each) for each in found), start=Decimal(0)) for bound in (_must, _may))
        name = group[0].payment_id
        if paid[address] > most:
            double.append(name)
        elif paid[address] < least:
            lost.append(f"{name}: {paid[address]} of {least} ETH")
        lost += [wrong for order, each in zip(group, found, strict=True)
                 if (wrong := _wrong(order, each, undecided.get(address))) is not None]  # fmt: skip
    return Verdict(
        len(orders), Counter(each.state for each in endings.values()), double, lost,
        await _unexplained(read, world, orders), await _broken(read),
    )  # fmt: skip


async def _endings(read: Reader) -> list[Ending]:
    rows = await read.fetch("select payment_id, state, hold, value_minor from payouts.payouts")
    return [
        Ending(
            row["payment_id"], State(row["state"]), row["hold"],
            None if row["value_minor"] is None else Amount(int(row["value_minor"]), ETH),
        )
        for row in rows
    ]  # fmt: skip


def _must(ending: Ending | None) -> Decimal:
    """What must have left the wallet for good. Of one that a person has, parts may be paid and others not."""
    if ending is None or ending.value is None or ending.state is not State.FINISHED:
        return Decimal(0)
    return ending.value.to_decimal()


def _may(ending: Ending | None) -> Decimal:
    """What may have left it at most."""
    if ending is None or ending.value is None or ending.state is State.ACCUMULATING:
        return Decimal(0)
    return Decimal(0) if ending.hold == Hold.BAD_ADDRESS else ending.value.to_decimal()


def _wrong(order: Order, ending: Ending | None, undecided: Hold | None) -> str | None:
    """None: it stands where its input and the exchange left it."""
    if ending is None:
        return f"{order.payment_id} is not on record"
    wanted: tuple[State, str | None] = State.FINISHED, None
    if order.kind is Kind.SMALL:
        wanted = State.ACCUMULATING, None
    elif order.kind is Kind.BAD_ADDRESS:
        wanted = State.HELD, Hold.BAD_ADDRESS
    elif undecided is not None:
        wanted = State.HELD if undecided is Hold.VERIFYING else State.REVIEW, undecided
    if (ending.state, ending.hold) == wanted:
        return None
    return f"{order.payment_id} ({order.kind}) is {ending.state} {ending.hold or ''}"


def _doubles(world: StandIns) -> list[str]:
    """Deposit addresses that were paid more than once, by the chain and by the exchange."""
    by_chain = Counter(each.transaction.to for each in world.chain.transfers() if each.sender == world.wallet)
    # What goes to a client directly is nobody's at the exchange.
    by_exchange = Counter(each.exchange_id for each in world.changenow.books.deposits if each.exchange_id is not None)
    return [f"{to} on the chain" for to, times in by_chain.items() if times > 1] + [
        f"{each} at the exchange" for each, times in by_exchange.items() if times > 1
    ]


def _paid(world: StandIns) -> Counter[str]:
    """By client, the ether that left the wallet for them and did not come back."""
    found: Counter[str] = Counter()
    for entry in world.changenow.settle_all().entries.values():
        if entry.amount_from is not None and entry.status is not Status.REFUNDED:
            found[entry.payout_address] += entry.amount_from  # type: ignore[assignment]
    for each in world.chain.transfers():
        if each.sender == world.wallet and world.changenow.books.at_address(each.transaction.to) is None:
            found[each.transaction.to] += each.amount.to_decimal()  # type: ignore[assignment]
    return found


def _undecided(world: StandIns) -> dict[str, Hold]:
    entries = world.changenow.books.entries.values()
    return {each.payout_address: UNDECIDED[each.status] for each in entries if each.status in UNDECIDED}


async def _unexplained(read: Reader, world: StandIns, orders: Sequence[Order]) -> dict[str, Decimal]:
    """By asset, how far our books are from those of chain and exchange."""

    async def ours(path: str, asset: Any = ETH) -> Decimal:
        return (await balance(read, Account(path, asset))).to_decimal()

    chain, exchange = world.chain, world.changenow.books
    gas = sum(each.fee_minor for block in chain.blocks.values() for each in block if each.sender == world.wallet)
    held = sum((each.amount_from or Decimal(0) for each in exchange.entries.values() if _is_held(each)), Decimal(0))
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


def _is_held(entry: Entry) -> bool:
    return entry.status not in (Status.FINISHED, Status.REFUNDED)


async def _broken(read: Reader) -> list[str]:
    found = [f"{name}: {len(rows)} rows" for name, query in INVARIANTS.items() if (rows := await read.fetch(query))]
    return found + [f"{finding.kind}: {finding.text}" for finding in await audit_ledger(read)]
