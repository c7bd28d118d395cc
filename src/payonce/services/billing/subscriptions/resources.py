"""Resources of subscriptions: token and notification secrets, the seller, and the fonts of invoices."""

from payonce.engine.database.connections import Database
from payonce.engine.messages.transaction import Reader
from payonce.services.billing.api.tokens import Tokens
from payonce.services.billing.settings import BillingSettings, files_of, jwt_keys, notification_secrets
from payonce.services.billing.subscriptions.domain.config import SubscriptionConfig
from payonce.services.billing.subscriptions.pdf.glyphs import Fonts, check_fonts
from payonce.services.billing.subscriptions.store.accounts import AccountVersions
from payonce.settings import Settings

MINUTE_S = 60


def subscription_resources(settings: Settings, database: Database) -> list[object]:
    """Tokens are checked against the accounts, which this service stores."""
    versions = AccountVersions(Reader(database))
    billing = settings.of(BillingSettings)
    return [
        Tokens(jwt_keys(settings), versions, access_s=billing.access_minutes * MINUTE_S),
        versions,
        SubscriptionConfig(
            notification_secrets(settings),
            settings.webhook_tolerance_s,
            billing.refresh_days,
            seller=tuple(line.strip() for line in billing.seller.split(";")),
            test_clocks=billing.has_test_clocks,
            registrations_max=billing.registrations_max,
            fonts=invoice_fonts(settings),
        ),
    ]


def invoice_fonts(settings: Settings) -> Fonts:
    """Raises Unavailable for an unreadable font at start-up, not when the first invoice is opened."""
    billing = settings.of(BillingSettings)
    fonts = Fonts(files_of(billing.invoice_fonts), files_of(billing.invoice_fonts_bold))
    check_fonts(fonts)
    return fonts
