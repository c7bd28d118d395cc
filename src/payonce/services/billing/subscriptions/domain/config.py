"""The configuration of subscriptions, opened with its role."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from payonce.kit.webhooks import TOLERANCE_S, Secret
from payonce.services.billing.subscriptions.pdf.glyphs import Fonts
from payonce.services.billing.subscriptions.store.accounts import REGISTRATIONS_MAX
from payonce.services.billing.subscriptions.store.refresh_tokens import REFRESH_DAYS


@dataclass(frozen=True)
class SubscriptionConfig:
    webhook_secrets: Sequence[Secret] = field(repr=False)
    """The secrets that payments signs with. Any of them is accepted, so they can be rotated without losing a
    notification."""
    tolerance_s: int = TOLERANCE_S
    refresh_days: int = REFRESH_DAYS
    registrations_max: int = REGISTRATIONS_MAX
    """From one address within a quarter of an hour; 0 disables self-registration."""
    seller: Sequence[str] = ("payonce",)
    """The seller on invoices: its name, then address and tax number."""
    fonts: Fonts = field(default_factory=Fonts)
    """The fonts of invoices."""
    test_clocks: bool = False
    """Only where the gateway is simulated: a year simulated in a second must not charge real cards."""
