"""The books of the simulated exchange: every exchange, every deposit seen, every payout and refund made.

    new ─▶ waiting ─▶ confirming ─▶ exchanging ─▶ sending ─▶ finished
              │            │              ├─▶ failed ─▶ refunded (when somebody decides so)
              │            │              └─▶ refunded
              ▼            └─▶ verifying ─▶ exchanging or refunded (when somebody decides)
           expired

The first deposit moves an exchange on; further ones stay where they are, and are what an oracle looks for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Any, Final

from payonce.kit.money import Amount, Asset
from payonce.vendors.books import Books
from payonce.vendors.changenow.port import Pair, Status
from payonce.vendors.changenow.prices import EXACT, both, listing, quote

CHAIN: Final = "chain"
"""The outside world: source of deposits, destination of payouts."""
DESK: Final = "desk"
"""Deposits that are neither traded nor refunded."""
STOCK: Final = "stock"
"""The counterparty of trades; its balance may go below zero."""
FEES: Final = "fees"


class Fate(StrEnum):
    """How a funded exchange ends."""

    FINISH = "finish"
    FAIL = "fail"
    REFUND = "refund"
    VERIFY = "verify"
    """Waits for verification until `decide` sets another fate."""


@dataclass(frozen=True)
class Pace:
    """How long an exchange stays in each status, by the books' clock."""

    new_s: float = 0.0
    waiting_s: float = 7_200.0
    """Unfunded, until it expires."""
    confirming_s: float = 30.0
    exchanging_s: float = 20.0
    sending_s: float = 10.0


AT_ONCE: Final = Pace(0.0, 7_200.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Deposit:
    number: int
    address: str
    asset: str
    amount: Decimal
    tx_hash: str
    seen_at: datetime
    exchange_id: str | None
    """None: to an address that is nobody's."""
    moved_it: bool
    """Whether it is the one that the exchange waited for."""


@dataclass(frozen=True)
class Paid:
    """A payout or a refund."""

    exchange_id: str
    address: str
    extra_id: str | None
    asset: str
    amount: Decimal
    tx_hash: str
    sent_at: datetime


@dataclass
class Entry:
    """One exchange as the vendor knows it."""

    id: str
    pair: Pair
    expected_from: Decimal
    expected_to: Decimal
    payin_address: str
    payin_extra_id: str | None
    payout_address: str
    payout_extra_id: str | None
    refund_address: str | None
    refund_extra_id: str | None
    user_id: str | None
    payload: Any
    fate: Fate
    created_at: datetime
    updated_at: datetime
    valid_until: datetime
    status: Status = Status.NEW
    amount_from: Decimal | None = None
    amount_to: Decimal | None = None
    deposited_at: datetime | None = None
    payin_hash: str | None = None
    payout_hash: str | None = None
    refund_hash: str | None = None
    refund_amount: Decimal | None = None


@dataclass
class ExchangeBooks:
    """The state of the exchange; its owner keeps the journal from which the state can be rebuilt."""

    pace: Pace = field(default_factory=Pace)
    entries: dict[str, Entry] = field(default_factory=dict)
    deposits: list[Deposit] = field(default_factory=list)
    payouts: list[Paid] = field(default_factory=list)
    refunds: list[Paid] = field(default_factory=list)
    money: Books = field(default_factory=Books)
    _by_address: dict[str, str] = field(default_factory=dict)
    _by_payment: dict[tuple[str, str], Deposit] = field(default_factory=dict)
    _of_exchange: dict[str, list[Deposit]] = field(default_factory=dict)

    def create(self, entry: Entry) -> None:
        self.entries[entry.id] = entry
        self._by_address[_folded(entry.payin_address)] = entry.id

    def at_address(self, address: str) -> Entry | None:
        found = self._by_address.get(_folded(address))
        return None if found is None else self.entries[found]

    def known(self, address: str, tx_hash: str) -> Deposit | None:
        """The deposit that this payment already is: a chain tells of one more than once."""
        return self._by_payment.get((_folded(address), tx_hash.lower()))

    def deposits_of(self, exchange_id: str) -> Sequence[Deposit]:
        """More than one is a payment too many."""
        return self._of_exchange.get(exchange_id, ())

    def deposit(self, address: str, asset: Asset, amount: Decimal, tx_hash: str, at: datetime) -> Deposit:
        entry = self.at_address(address)
        is_wanted = entry is not None and entry.status in (Status.NEW, Status.WAITING) and _takes(entry, asset)
        seen = Deposit(
            len(self.deposits) + 1, address, asset.code, amount, tx_hash, at, entry.id if entry else None, is_wanted
        )
        self.deposits.append(seen)
        self._by_payment[_folded(address), tx_hash.lower()] = seen
        self.money.book(CHAIN, DESK, Amount.from_decimal(amount, asset), tx_hash, at)
        if entry is not None:
            self._of_exchange.setdefault(entry.id, []).append(seen)
        if entry is not None and is_wanted:
            entry.amount_from, entry.payin_hash, entry.deposited_at = amount, tx_hash, at
            entry.status, entry.updated_at = Status.CONFIRMING, at
        return seen

    def due(self, entry: Entry) -> tuple[Status, datetime] | None:
        """What happens next by itself, and when."""
        pace = self.pace
        match entry.status:
            case Status.NEW:
                return Status.WAITING, entry.updated_at + timedelta(seconds=pace.new_s)
            case Status.WAITING:
                return Status.EXPIRED, entry.valid_until
            case Status.CONFIRMING:
                following = Status.VERIFYING if entry.fate is Fate.VERIFY else Status.EXCHANGING
                return following, entry.updated_at + timedelta(seconds=pace.confirming_s)
            case Status.EXCHANGING:
                ends = {Fate.FAIL: Status.FAILED, Fate.REFUND: Status.REFUNDED}
                return ends.get(entry.fate, Status.SENDING), entry.updated_at + timedelta(seconds=pace.exchanging_s)
            case Status.SENDING:
                return Status.FINISHED, entry.updated_at + timedelta(seconds=pace.sending_s)
        return None

    def move(self, exchange_id: str, to: Status, tx_hash: str, at: datetime) -> None:
        entry = self.entries[exchange_id]
        match to:
            case Status.SENDING:
                self._trade(entry, at)
            case Status.FINISHED:
                self._pay(entry, tx_hash, at)
            case Status.REFUNDED:
                self._refund(entry, tx_hash, at)
        entry.status, entry.updated_at = to, at

    def decide(self, exchange_id: str, fate: Fate) -> None:
        self.entries[exchange_id].fate = fate

    def held(self) -> Mapping[str, Decimal]:
        """Deposits that are neither traded nor refunded, by asset."""
        return {each.asset.code: each.to_decimal() for each in self.money.balances(DESK) if each}

    def _trade(self, entry: Entry, at: datetime) -> None:
        assert entry.amount_from is not None
        listings = both(entry.pair)
        assert listings is not None
        given, got = listings
        deal = quote(given, got, entry.amount_from)
        entry.amount_to = deal.to_amount
        kept = min(deal.deposit_fee, entry.amount_from)
        self._book(DESK, FEES, kept, given.asset, entry.id, at)
        self._book(DESK, STOCK, EXACT.subtract(entry.amount_from, kept), given.asset, entry.id, at)
        self._book(STOCK, FEES, deal.withdrawal_fee if deal.to_amount else Decimal(0), got.asset, entry.id, at)

    def _pay(self, entry: Entry, tx_hash: str, at: datetime) -> None:
        assert entry.amount_to is not None
        got = listing(entry.pair.to_currency, entry.pair.to_network)
        assert got is not None
        entry.payout_hash = tx_hash
        self._book(STOCK, CHAIN, entry.amount_to, got.asset, entry.id, at)
        self.payouts.append(
            Paid(entry.id, entry.payout_address, entry.payout_extra_id, got.asset.code, entry.amount_to, tx_hash, at)
        )

    def _refund(self, entry: Entry, tx_hash: str, at: datetime) -> None:
        """All that was deposited, less what it costs to send it."""
        assert entry.amount_from is not None
        given = listing(entry.pair.from_currency, entry.pair.from_network)
        assert given is not None
        kept = min(given.fee, entry.amount_from)
        entry.refund_hash, entry.refund_amount = tx_hash, EXACT.subtract(entry.amount_from, kept)
        self._book(DESK, FEES, kept, given.asset, entry.id, at)
        self._book(DESK, CHAIN, entry.refund_amount, given.asset, entry.id, at)
        self.refunds.append(
            Paid(
                entry.id,
                entry.refund_address or "",
                entry.refund_extra_id,
                given.asset.code,
                entry.refund_amount,
                tx_hash,
                at,
            )
        )

    def _book(self, source: str, target: str, value: Decimal, asset: Asset, exchange_id: str, at: datetime) -> None:
        if value:
            self.money.book(source, target, Amount.from_decimal(value, asset), exchange_id, at)


def _takes(entry: Entry, asset: Asset) -> bool:
    given = listing(entry.pair.from_currency, entry.pair.from_network)
    return given is not None and given.asset == asset


def _folded(address: str) -> str:
    """Lower-cases EVM addresses, which are case-insensitive; others stay as they are."""
    return address.lower() if address.startswith("0x") else address
