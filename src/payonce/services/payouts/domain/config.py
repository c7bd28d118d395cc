"""The configuration of payouts, filled in from the settings by `resources.py`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final

from payonce.kit.outcomes import Invalid
from payonce.services.payouts.domain.addresses import wrong_with
from payonce.services.payouts.domain.pricing import FEE_BELOW_PERCENT
from payonce.services.payouts.model import ETH_NETWORK

TOLERANCE_S: Final = 300
"""Maximum difference between a webhook's time and ours."""


@dataclass(frozen=True)
class PayoutConfig:
    signing_keys: Sequence[bytes] = field(repr=False)
    """Keys of the webhook's callers: one, or several during a rotation."""
    host_wallet: str
    """The exchange's refund address."""
    fee_percent: Decimal = Decimal(3)
    allow_missing_payment_id: bool = False
    tolerance_s: int = TOLERANCE_S
    external_hostpay: bool = False
    """The operator's own GCHostPay pays the exchanges instead of our wallet."""
    six_fields: bool = False
    """Callers send neither payment_id nor timestamp: the payment id is derived, the timestamp checked only if given."""

    def __post_init__(self) -> None:
        if not self.signing_keys or not all(self.signing_keys):
            raise Invalid("payouts have no signing key, so anybody could order them; set SUCCESS_URL_SIGNING_KEY")
        if not self.fee_percent.is_finite() or not 0 <= self.fee_percent < FEE_BELOW_PERCENT:
            raise Invalid(
                f"the fee of payouts is {self.fee_percent} percent; it must be 0 or more and below {FEE_BELOW_PERCENT}"
            )
        if not self.host_wallet:
            raise Invalid("payouts have no host wallet; set HOST_WALLET_ADDRESS, the exchange's refund address")
        if (wrong := wrong_with(ETH_NETWORK, self.host_wallet)) is not None:
            why = wrong.partition(";")[0]
            raise Invalid(f"HOST_WALLET_ADDRESS, the exchange's refund address, is {self.host_wallet}: it {why}")
