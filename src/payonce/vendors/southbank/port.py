"""The port of Southbank, and its types."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final, Protocol, runtime_checkable

import msgspec

from payonce.kit.money import Amount, Asset, well_known

LISTED_WITHIN_S: Final = 2.0
"""The bank guarantees that a booked payment is listed within this time."""


class PaymentOrder(msgspec.Struct, frozen=True):
    """A payment between two accounts at the bank. Sending it twice pays it twice."""

    reference: str
    debtor: str
    creditor: str
    value: str
    """Major units, as a decimal string."""
    currency: str

    @property
    def amount(self) -> Amount:
        return Amount.from_decimal(self.value, well_known(self.currency))


class PaymentReceipt(msgspec.Struct, frozen=True):
    payment_id: str
    reference: str
    booked_ms: int
    """Milliseconds since 1970, by the bank's clock."""


class StatementLine(msgspec.Struct, frozen=True):
    payment_id: str
    reference: str
    counterparty: str
    value: str
    """Signed; incoming amounts are positive."""
    currency: str
    booked_ms: int

    @property
    def amount(self) -> Amount:
        return Amount.from_decimal(self.value, well_known(self.currency))


class StatementPage(msgspec.Struct, frozen=True):
    lines: Sequence[StatementLine]
    pages: int
    """The total number of pages."""


@runtime_checkable
class Southbank(Protocol):
    async def pay(self, order: PaymentOrder) -> PaymentReceipt:
        """Raises Refused (definite, nothing moved), NotSent (it never arrived) or Unknown."""
        ...

    async def find_payment(self, order: PaymentOrder) -> PaymentReceipt | None:
        """None is conclusive only after LISTED_WITHIN_S. Raises NotSent or Unknown."""
        ...

    async def void(self, reference: str) -> None:
        """Returns if nothing was booked under the reference and nothing ever will be; raises if it was booked, or if
        that is uncertain."""
        ...

    async def balance(self, account: str, asset: Asset) -> Amount: ...

    async def statement(self, account: str, begin: datetime, end: datetime, page: int = 1) -> StatementPage: ...
