"""What subscriptions agreed on with those around them, opened with their role."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from payonce.kit.webhooks import TOLERANCE_S, Secret
from payonce.services.billing.subscriptions.pdf.glyphs import Fonts
from payonce.services.billing.subscriptions.store.accounts import REGISTRATIONS_MAX
from payonce.services.billing.subscriptions.store.refresh_tokens import REFRESH_DAYS


@dataclass(frozen=True)
class SubscriptionConfig:
    webhook_secrets: Sequence[Secret] = field(repr=False)
    """What payments sign with: any of them will do, so that they can be exchanged without a lost notification."""
    tolerance_s: int = TOLERANCE_S
    refresh_days: int = REFRESH_DAYS
    registrations_max: int = REGISTRATIONS_MAX
    """From one address within a quarter of an hour; 0 closes self-registration."""
    seller: Sequence[str] = ("payonce",)
    """Who sells, for invoices: the name, and below it address and tax number."""
    fonts: Fonts = field(default_factory=Fonts)
    """Of invoices."""
    test_clocks: bool = False
    """Only where the gateway is simulated: a year that passes in a second must not charge anybody's card."""
