"""Payouts' messages as the tests of tokens have them, and codecs on a clock that stands still."""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from payonce.engine.messages.model import Message
from payonce.kit.webhooks.secrets import Secret
from payonce.services.payouts.messages.tokens import (
    ESTIMATE_REQUEST,
    ESTIMATE_RESPONSE,
    HOST_PAY,
    SWAP_REQUEST,
    SWAP_RESPONSE,
    EstimateRequest,
    EstimateResponse,
    Hop,
    HostPay,
    SwapRequest,
    SwapResponse,
    plain,
)
from payonce.services.payouts.messages.tokens.codec import TokenCodec
from payonce.services.payouts.messages.tokens.hops import HopFields

NOW_S: Final = 1_761_500_000
KEY: Final = Secret("a-signing-key-of-the-tests-0123456789")
HOSTPAY_KEY: Final = Secret("another-key-of-the-tests-9876543210")
MESSAGE_ID: Final = UUID("0190a7c4-5b1e-7d3a-9f00-1122334455aa")
CLIENT: Final = "0x" + "c1" * 20
PAYIN: Final = "0x" + "d2" * 20
HOST_WALLET: Final = "0x" + "e3" * 20
TASK: Final = {"x-cloudtasks-taskname": "3656158400"}

_CALLER: Final[dict[str, Any]] = {"user_id": 6_271_402, "closed_channel_id": "-1002345678901"}
_TARGET: Final[dict[str, Any]] = {"wallet_address": CLIENT, "payout_currency": "usdt", "payout_network": "eth"}
_ID: Final[dict[str, Any]] = {"unique_id": "A1B2C3D4E5F6G7H8"}
_SWAP: Final[dict[str, Any]] = {
    "cn_api_id": "6a7b8c9d0e1f2a",
    "from_currency": "eth",
    "to_currency": "usdt",
    "from_network": "eth",
    "to_network": "eth",
    "from_amount": Decimal("0.0123"),
    "to_amount": Decimal("29.1"),
    "payin_address": PAYIN,
    "payout_address": CLIENT,
    "refund_address": "",
    "flow": "standard",
    "type": "direct",
}

FIELDS: Final[dict[Hop, HopFields]] = {
    ESTIMATE_REQUEST: EstimateRequest(**_CALLER, **_TARGET, adjusted_amount_usdt=Decimal("29.1")),
    ESTIMATE_RESPONSE: EstimateResponse(
        **_CALLER,
        **_TARGET,
        from_amount_usdt=Decimal("29.1"),
        to_amount_eth_post_fee=Decimal("0.0101"),
        deposit_fee=Decimal("1.5"),
        withdrawal_fee=Decimal("0.0007"),
    ),
    SWAP_REQUEST: SwapRequest(**_ID, **_CALLER, **_TARGET, eth_amount=Decimal("0.0113869565217391")),
    SWAP_RESPONSE: SwapResponse(**_ID, **_CALLER, **_SWAP),
    HOST_PAY: HostPay(
        **_ID,
        cn_api_id="6a7b8c9d0e1f2a",
        from_currency="eth",
        from_network="eth",
        from_amount=Decimal("0.0123"),
        payin_address=PAYIN,
    ),
}


class Clock:
    def __init__(self, now_s: float = NOW_S) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


def keys_of(hop: Hop) -> Sequence[Secret]:
    return [HOSTPAY_KEY if hop is HOST_PAY else KEY]


def codec(hop: Hop, keys: Sequence[Secret] | None = None, *, clock: Clock | None = None, v1: str = "off") -> TokenCodec:
    return TokenCodec(
        hop,
        keys_of(hop) if keys is None else keys,
        accept_v1=v1 == "accept",
        emit_v1=v1 == "emit",
        clock=clock or Clock(),
    )


def message(hop: Hop, **changes: Any) -> Message:
    """The service's message of this hop, with a key of its own beside the hop's fields."""
    payload = {**plain(FIELDS[hop]), "payout_id": "p-1", **changes}
    return Message(id=MESSAGE_ID, queue=hop.queue, payload=payload)
