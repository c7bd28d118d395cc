"""What payonce asks of Southbank, and the words it asks with."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final, Protocol, runtime_checkable

import msgspec

from payonce.kit.money import Amount, Asset, well_known

LISTED_WITHIN_S: Final = 2.0
"""A payment that was booked is listed after this time at the latest, says the bank."""


class PaymentOrder(msgspec.Struct, frozen=True):
    """Pays from one account at the bank to another. Sent twice, it is paid twice."""

    reference: str
    debtor: str
    creditor: str
    value: str
    """Major units, a decimal text."""
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
    """Signed: what came is positive."""
    currency: str
    booked_ms: int

    @property
    def amount(self) -> Amount:
        return Amount.from_decimal(self.value, well_known(self.currency))


class StatementPage(msgspec.Struct, frozen=True):
    lines: Sequence[StatementLine]
    pages: int
    """How many there are, this one included."""


@runtime_checkable
class Southbank(Protocol):
    async def pay(self, order: PaymentOrder) -> PaymentReceipt:
        """Raises Refused (a definite no, nothing moved), NotSent (it never arrived) or Unknown."""
        ...

    async def find_payment(self, order: PaymentOrder) -> PaymentReceipt | None:
        """None proves nothing before LISTED_WITHIN_S have passed. Raises NotSent or Unknown."""
        ...

    async def void(self, reference: str) -> None:
        """Returns when nothing was booked under the reference and nothing ever will be; raises when it was booked, or
        when that is not certain."""
        ...

    async def balance(self, account: str, asset: Asset) -> Amount: ...

    async def statement(self, account: str, begin: datetime, end: datetime, page: int = 1) -> StatementPage: ...
