"""What gauges tell of billing; each service reads its own schema."""

from payonce.engine.database import Database
from payonce.services.billing.payments.observing import observe_payments
from payonce.services.billing.subscriptions.observing import observe_subscriptions


async def observe_billing(database: Database) -> None:
    await observe_subscriptions(database)
    await observe_payments(database)
