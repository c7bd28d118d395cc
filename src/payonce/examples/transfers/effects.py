"""The effects of a transfer at the banks, and how each is resolved in doubt."""

from typing import Final

from payonce import Amount, DidNot, Effect, Findable, Happened, Keyed
from payonce.examples.transfers.model import HOUSE, Transfer
from payonce.examples.transfers.policies import VENDOR_TIMEOUT_S
from payonce.vendors.northbank.port import KEYS_KEPT_S, Northbank, TransferOrder, TransferReceipt
from payonce.vendors.southbank.port import LISTED_WITHIN_S, PaymentOrder, PaymentReceipt, Southbank

KEY_MARGIN_S: Final = 3_600.0
"""The bank's day follows its own clock: a key near its expiry is queried, not sent again."""


class AtNorthbank(Effect[TransferOrder, TransferReceipt]):
    """In doubt, the same order is sent again under the same key, and takes effect once."""

    version, timeout_s = 1, VENDOR_TIMEOUT_S
    safety = Keyed(KEYS_KEPT_S - KEY_MARGIN_S)

    def __init__(self, bank: Northbank, transfer: Transfer) -> None:
        self.bank = bank
        self.transfer = transfer

    async def perform(self, request: TransferOrder) -> TransferReceipt:
        return await self.bank.transfer(request)

    async def resolve(self, request: TransferOrder) -> Happened[TransferReceipt] | DidNot:
        """Called only after the bank has forgotten the key."""
        found = await self.bank.find_transfer(request.key)
        return Happened(found) if found else DidNot()

    def amount(self, request: TransferOrder) -> Amount:
        return request.amount

    def vendor_ref(self, outcome: TransferReceipt) -> str:
        return outcome.id


class Withdraw(AtNorthbank):
    """From the customer's account to ours."""

    kind = "northbank.withdraw"

    async def prepare(self) -> TransferOrder:
        amount = self.transfer.amount
        return TransferOrder(self.reference, self.transfer.source, HOUSE, amount.to_text(), amount.asset.code)


class Refund(AtNorthbank):
    """The refund, under a separate key."""

    kind = "northbank.refund"

    async def prepare(self) -> TransferOrder:
        amount = self.transfer.amount
        return TransferOrder(self.reference, HOUSE, self.transfer.source, amount.to_text(), amount.asset.code)


class PayIn(Effect[PaymentOrder, PaymentReceipt]):
    """From our account at Southbank to the customer's. In doubt, the bank is queried; a payment that does not appear in
    time is voided there, and only then another one is sent under a new reference."""

    kind, version, timeout_s = "southbank.pay_in", 1, VENDOR_TIMEOUT_S

    def __init__(self, bank: Southbank, transfer: Transfer) -> None:
        self.bank = bank
        self.transfer = transfer
        self.safety = Findable(LISTED_WITHIN_S, fence=self._void, burns=True)

    async def prepare(self) -> PaymentOrder:
        amount = self.transfer.amount
        return PaymentOrder(self.reference, HOUSE, self.transfer.target, amount.to_text(), amount.asset.code)

    async def perform(self, request: PaymentOrder) -> PaymentReceipt:
        return await self.bank.pay(request)

    async def resolve(self, request: PaymentOrder) -> Happened[PaymentReceipt] | DidNot:
        found = await self.bank.find_payment(request)
        return Happened(found) if found else DidNot()

    def amount(self, request: PaymentOrder) -> Amount:
        return request.amount

    def vendor_ref(self, outcome: PaymentReceipt) -> str:
        return outcome.payment_id

    async def _void(self, request: PaymentOrder) -> None:
        await self.bank.void(request.reference)
