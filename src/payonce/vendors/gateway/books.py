"""The gateway's books: all charges including declined ones, all refunds, and the movements in order."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from payonce.kit.money import Amount, well_known
from payonce.vendors.books import Denied
from payonce.vendors.gateway.port import INVOICE, LineKind, RefusalCode


@dataclass(frozen=True, slots=True)
class ChargeEntry:
    id: str
    payment_method: str
    amount: int
    currency: str
    reference: str
    metadata: Mapping[str, str]
    created: datetime
    delay_ms: int
    decline_code: str | None

    @property
    def captured(self) -> int:
        return 0 if self.decline_code else self.amount


@dataclass(frozen=True, slots=True)
class RefundEntry:
    id: str
    charge: str
    amount: int
    currency: str
    reference: str
    reason: str
    created: datetime


@dataclass(frozen=True, slots=True)
class Line:
    """One movement of money; `number` counts from 1."""

    number: int
    kind: LineKind
    source: str
    reference: str
    amount: int
    """Signed."""
    currency: str
    created: datetime


@dataclass
class GatewayBooks:
    """The state of the gateway; its owner keeps the journal from which the state can be rebuilt. Test oracles read from
    it what really happened at the gateway."""

    charges: dict[str, ChargeEntry] = field(default_factory=dict)
    refunds: dict[str, RefundEntry] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)
    _charges_by_reference: dict[str, list[ChargeEntry]] = field(default_factory=dict)
    _refunds_by_reference: dict[str, list[RefundEntry]] = field(default_factory=dict)
    _refunded: Counter[str] = field(default_factory=Counter)

    def charge(self, entry: ChargeEntry) -> None:
        self.charges[entry.id] = entry
        self._charges_by_reference.setdefault(entry.reference, []).append(entry)
        if entry.captured:
            self._move(LineKind.CHARGE, entry.id, entry.reference, entry.captured, entry.currency, entry.created)

    def refund(self, entry: RefundEntry) -> None:
        self.refunds[entry.id] = entry
        self._refunds_by_reference.setdefault(entry.reference, []).append(entry)
        self._refunded[entry.charge] += entry.amount
        self._move(LineKind.REFUND, entry.id, entry.reference, -entry.amount, entry.currency, entry.created)

    def check_refund(self, charge_id: object, amount: int) -> ChargeEntry:
        """Raises Denied if the refund is not allowed."""
        entry = self.charges.get(charge_id) if isinstance(charge_id, str) else None
        if entry is None:
            raise Denied(RefusalCode.NO_SUCH_CHARGE, "There is no such charge.")
        if not entry.captured:
            raise Denied(RefusalCode.CHARGE_FAILED, "The charge captured nothing.")
        left = entry.captured - self.refunded_of(entry.id)
        if amount > left:
            raise Denied(RefusalCode.AMOUNT_TOO_LARGE, f"The refund is larger than the {left} that are left.")
        return entry

    def charges_of(self, reference: str) -> Sequence[ChargeEntry]:
        return self._charges_by_reference.get(reference, ())

    def refunds_of(self, reference: str) -> Sequence[RefundEntry]:
        return self._refunds_by_reference.get(reference, ())

    def refunded_of(self, charge_id: str) -> int:
        return self._refunded[charge_id]

    def captured_total(self, currency: str) -> Amount:
        return self._total(LineKind.CHARGE, currency)

    def refunded_total(self, currency: str) -> Amount:
        """The refunded total, as a positive amount."""
        return -self._total(LineKind.REFUND, currency)

    def captures_per_invoice(self) -> Counter[str]:
        """Captures per invoice over all attempts, by `metadata.invoice` or, without one, by reference. More than one
        capture means that a customer paid twice."""
        return Counter(
            entry.metadata.get(INVOICE, entry.reference) for entry in self.charges.values() if entry.captured
        )

    def declines(self) -> Counter[str]:
        return Counter(entry.decline_code for entry in self.charges.values() if entry.decline_code)

    def _total(self, kind: LineKind, currency: str) -> Amount:
        minor = sum(line.amount for line in self.lines if (line.kind, line.currency) == (kind, currency))
        return Amount(minor, well_known(currency))

    def _move(self, kind: LineKind, source: str, reference: str, amount: int, currency: str, created: datetime) -> None:
        self.lines.append(Line(len(self.lines) + 1, kind, source, reference, amount, currency, created))
