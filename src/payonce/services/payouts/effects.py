"""What a payout does at the exchange, and how a doubt about it is ended."""

from typing import Final

from payonce.engine.effects import Effect, Harmless
from payonce.kit.outcomes import Refused
from payonce.services.payouts.model import ETH_NETWORK, ETH_TICKER, Swap
from payonce.services.payouts.policies import VENDOR_TIMEOUT_S
from payonce.vendors.changenow.port import ChangeNow, Code, ExchangeRefused, Order, Pair
from payonce.vendors.changenow.port import Swap as Made

_MARK: Final = ": "


class CreateSwap(Effect[Order, Made]):
    """An exchange that nobody pays moves nothing. So in doubt the next generation is created, and the doubtful one,
    should it exist, waits for a deposit that never comes and expires."""

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
            # The record keeps the sentence alone, and what follows depends on the vendor's word.
            raise Refused(f"{refusal.code}{_MARK}{refusal.reason}") from refusal

    def vendor_ref(self, outcome: Made) -> str:
        return outcome.id


def pair_of(swap: Swap) -> Pair:
    return Pair(ETH_TICKER, ETH_NETWORK, swap.currency, swap.network)


def code_of(refusal: Refused) -> Code:
    """The vendor's word in a refusal, fresh or from the record. A brake of ours refuses without one."""
    word = refusal.reason.partition(_MARK)[0]
    return Code(word) if word in set(Code) else Code.OTHER
