"""The port of Northbank, and its types."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final, Protocol, runtime_checkable

import msgspec

from payonce.kit.money import Amount, Asset, well_known

KEYS_KEPT_S: Final = 24 * 3_600.0
"""How long the bank remembers a key, by its own clock."""


class TransferOrder(msgspec.Struct, frozen=True):
    """A transfer between two accounts at the bank. Sent again unchanged, it happens once."""

    key: str
    source: str
    target: str
    value: str
    """Major units, as a decimal string."""
    currency: str

    @property
    def amount(self) -> Amount:
        return Amount.from_decimal(self.value, well_known(self.currency))


class TransferReceipt(msgspec.Struct, frozen=True):
    id: str
    key: str
    booked_at: datetime


class StatementLine(msgspec.Struct, frozen=True):
    id: str
    key: str
    """The key of our order; empty for transfers ordered by others."""
    counterparty: str
    value: str
    """Signed; incoming amounts are positive."""
    currency: str
    booked_at: datetime

    @property
    def amount(self) -> Amount:
        return Amount.from_decimal(self.value, well_known(self.currency))


class StatementPage(msgspec.Struct, frozen=True):
    lines: Sequence[StatementLine]
    after: str | None
    """Cursor of the next page; None at the end."""


@runtime_checkable
class Northbank(Protocol):
    async def transfer(self, order: TransferOrder) -> TransferReceipt:
        """Raises Refused (definite, nothing moved), NotSent (it never arrived) or Unknown."""
        ...

    async def find_transfer(self, key: str) -> TransferReceipt | None:
        """Finds a transfer by its key, even after the key has expired. Raises NotSent or Unknown."""
        ...

    async def balance(self, account: str, asset: Asset) -> Amount: ...

    async def statement(
        self, account: str, begin: datetime, end: datetime, after: str | None = None
    ) -> StatementPage: ...
