"""The banks' statements of our account, for reconciliation."""

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from payonce import Amount, Asset, Entry, Flow, Reads, StatementSource, well_known
from payonce.examples.transfers.effects import PayIn, Refund, Withdraw
from payonce.examples.transfers.model import AT_NORTHBANK, AT_SOUTHBANK, HOUSE
from payonce.vendors.northbank.port import Northbank, TransferReceipt
from payonce.vendors.southbank.port import LISTED_WITHIN_S, PaymentReceipt, Southbank

STEPS: Final = {"withdraw": Withdraw.kind, "refund": Refund.kind, "pay-in": PayIn.kind}
"""The last part of an effect's key, and the effect's kind."""
STRANGER: Final = "other"
"""The kind of a line that none of our orders caused."""
HELD: Final[Sequence[Asset]] = (well_known("EUR"), well_known("JPY"))
"""Balances of our accounts at the banks."""
RECONCILE_EVERY_S: Final = 600.0


class BankStatement(StatementSource):
    """Common to both banks: our orders are recognised by their keys."""

    every_s = RECONCILE_EVERY_S

    async def expects(self, read: Reads, entry: Entry) -> bool:
        split = entry.key_and_generation
        transfer_id = None if split is None else split[0].rpartition("/")[0]
        return entry.kind != STRANGER and bool(
            await read.fetchval(
                """
                select exists (select from transfers.transfers
                    where id = $1 and asset = $2 and exponent = $3 and amount_minor = $4)
                """,
                transfer_id,
                entry.amount.asset.code,
                entry.amount.asset.exponent,
                abs(entry.amount).minor,
            )
        )


class NorthbankStatement(BankStatement):
    vendor = "northbank"
    kinds: Mapping[str, Flow] = {Withdraw.kind: Flow.IN, Refund.kind: Flow.OUT}
    mirror = AT_NORTHBANK
    lag_s = 0.0

    def __init__(self, bank: Northbank) -> None:
        self._bank = bank

    async def entries(self, since: datetime, until: datetime) -> AsyncIterator[Entry]:
        after = None
        while True:
            page = await self._bank.statement(HOUSE, since, until, after)
            for line in page.lines:
                receipt = TransferReceipt(line.id, line.key, line.booked_at)
                yield Entry(line.id, line.key or None, _kind_of(line.key), line.amount, line.booked_at, receipt)
            if page.after is None:
                return
            after = page.after

    async def balance(self) -> list[Amount]:
        return [await self._bank.balance(HOUSE, asset) for asset in HELD]


class SouthbankStatement(BankStatement):
    vendor = "southbank"
    kinds: Mapping[str, Flow] = {PayIn.kind: Flow.OUT}
    mirror = AT_SOUTHBANK
    lag_s = LISTED_WITHIN_S

    def __init__(self, bank: Southbank) -> None:
        self._bank = bank

    async def entries(self, since: datetime, until: datetime) -> AsyncIterator[Entry]:
        number, pages = 1, 1
        while number <= pages:
            page = await self._bank.statement(HOUSE, since, until, number)
            for line in page.lines:
                receipt = PaymentReceipt(line.payment_id, line.reference, line.booked_ms)
                at = datetime.fromtimestamp(line.booked_ms / 1000, UTC)
                kind = _kind_of(line.reference)
                yield Entry(line.payment_id, line.reference or None, kind, line.amount, at, receipt)
            number, pages = number + 1, page.pages

    async def balance(self) -> list[Amount]:
        return [await self._bank.balance(HOUSE, asset) for asset in HELD]


def statements(resources: Sequence[object]) -> list[StatementSource]:
    """The statements of banks with open clients."""
    found: list[StatementSource] = []
    for resource in resources:
        if isinstance(resource, Northbank):
            found.append(NorthbankStatement(resource))
        elif isinstance(resource, Southbank):
            found.append(SouthbankStatement(resource))
    return found


def _kind_of(reference: str) -> str:
    """Parses our references, `transfer/step:generation`."""
    return STEPS.get(reference.rpartition(":")[0].rpartition("/")[2], STRANGER)
