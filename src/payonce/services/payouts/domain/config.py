"""What the operator has agreed with the callers of payouts; the composition root fills it in from the settings."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final

from payonce.kit.outcomes import Invalid
from payonce.services.payouts.domain.addresses import wrong_with
from payonce.services.payouts.domain.pricing import FEE_BELOW_PERCENT
from payonce.services.payouts.model import ETH_NETWORK

TOLERANCE_S: Final = 300
"""How far a webhook's time may be from ours."""


@dataclass(frozen=True)
class PayoutConfig:
    signing_keys: Sequence[bytes] = field(repr=False)
    """Of the callers of the webhook: one, or several while they are being exchanged."""
    host_wallet: str
    """Where the exchange sends back what it cannot change."""
    fee_percent: Decimal = Decimal(3)
    allow_missing_payment_id: bool = False
    tolerance_s: int = TOLERANCE_S
    external_hostpay: bool = False
    """The operator's own GCHostPay pays the exchanges, not a wallet of ours."""
    six_fields: bool = False
    """Callers send neither payment_id nor timestamp: the one is derived, and the other is checked where it is given."""

    def __post_init__(self) -> None:
        if not self.signing_keys or not all(self.signing_keys):
            raise Invalid("payouts have no signing key: without one anybody could order them; set one")
        if not self.fee_percent.is_finite() or not 0 <= self.fee_percent < FEE_BELOW_PERCENT:
            raise Invalid(
                f"the fee of payouts is {self.fee_percent} percent; it must be 0 or more and below {FEE_BELOW_PERCENT}"
            )
        if not self.host_wallet:
            raise Invalid("payouts have no host wallet: state the address to which the exchange sends refunds")
        if (wrong := wrong_with(ETH_NETWORK, self.host_wallet)) is not None:
            why = wrong.partition(";")[0]
            raise Invalid(f"HOST_WALLET_ADDRESS, where the exchange sends refunds, is {self.host_wallet}: that {why}")
