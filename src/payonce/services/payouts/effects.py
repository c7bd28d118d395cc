"""The effect that creates an exchange, and how its doubts are resolved."""

from typing import Final

from payonce.engine.effects import Effect, Harmless
from payonce.kit.outcomes import Refused
from payonce.services.payouts.model import ETH_NETWORK, ETH_TICKER, Swap
from payonce.services.payouts.policies import VENDOR_TIMEOUT_S
from payonce.vendors.changenow.port import ChangeNow, Code, ExchangeRefused, Order, Pair
from payonce.vendors.changenow.port import Swap as Made

_MARK: Final = ": "


class CreateSwap(Effect[Order, Made]):
    """Creates an exchange. An unpaid exchange moves no money: in doubt the next generation creates another one, and the
    doubtful one, if it exists, expires without a deposit."""

    kind, version, timeout_s = "changenow.create", 1, VENDOR_TIMEOUT_S + 5.0
    safety = Harmless()

    def __init__(self, changenow: ChangeNow, swap: Swap, refund_address: str) -> None:
        self.changenow = changenow
        self.swap = swap
        self.refund_address = refund_address

    def identity(self) -> object:
        """Without the refund address, which is a setting: an operator may change it while an order is in doubt."""
        swap = self.swap
        return {
            "swap": swap.id,
            "currency": swap.currency,
            "network": swap.network,
            "address": swap.address,
            "extra_id": swap.extra_id,
            "amount": str(swap.amount),
        }

    async def prepare(self) -> Order:
        return Order(
            pair=pair_of(self.swap),
            from_amount=self.swap.amount.to_decimal(),
            address=self.swap.address,
            extra_id=self.swap.extra_id,
            refund_address=self.refund_address,
            payload=self.reference,
        )

    async def perform(self, request: Order) -> Made:
        try:
            return await self.changenow.create(request)
        except ExchangeRefused as refusal:
            # The effect's record keeps only this sentence, and the handler needs the vendor's code.
            raise Refused(f"{refusal.code}{_MARK}{refusal.reason}") from refusal

    def vendor_ref(self, outcome: Made) -> str:
        return outcome.id


def pair_of(swap: Swap) -> Pair:
    return Pair(ETH_TICKER, ETH_NETWORK, swap.currency, swap.network)


def code_of(refusal: Refused) -> Code:
    """The vendor's code in a refusal, fresh or from the record; OTHER for a refusal by our own controls."""
    word = refusal.reason.partition(_MARK)[0]
    return Code(word) if word in set(Code) else Code.OTHER
