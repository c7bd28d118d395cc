"""What billing needs from outside: the card gateway, the way to tell subscriptions, and what both services recognise
their callers by."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from payonce.engine.database import Database
from payonce.outside import open_gateway
from payonce.services.billing.payments.gateway_events import GatewayDoor
from payonce.services.billing.payments.notifying import Notifier, open_notifier
from payonce.settings import Settings
from payonce.settings.billing import PORTS, SUBSCRIPTIONS, notification_secrets
from payonce.subscribing import subscribing

LOOPBACK: Final = "127.0.0.1"
EVERYWHERE: Final = frozenset({"", "::", "0.0.0.0"})  # noqa: S104 - where somebody listens, and nobody calls


@asynccontextmanager
async def open_billing(settings: Settings, database: Database) -> AsyncIterator[Sequence[object]]:
    """For both services: one process may run either or both, and their routes need what their handlers do. Without
    secrets no role starts (`Settings.check_roles`); the gateway's statement can be read all the same."""
    billing = settings.billing
    url = billing.subscription_service_url or f"http://{LOOPBACK}:{PORTS[SUBSCRIPTIONS]}"
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(open_gateway(settings, database))
        if not settings.embedded and None in (billing.jwt_secret_key, settings.webhook_signing_secret):
            yield gateway
            return
        notifier = await stack.enter_async_context(open_notifier(url, notification_secrets(settings), database))
        door = GatewayDoor(billing.gateway_secrets(settings.data_dir if settings.embedded else None))
        yield [*gateway, notifier, door, *subscribing(settings, database)]


def tell_where(resources: Sequence[object], settings: Settings, roles: Sequence[str], port: int) -> None:
    """This process listens: if it is the subscription service, and nobody says that another one is, notifications of
    payments go to itself."""
    if settings.billing.subscription_service_url is not None or SUBSCRIPTIONS not in roles:
        return
    host = LOOPBACK if settings.host in EVERYWHERE else settings.host
    for resource in resources:
        if isinstance(resource, Notifier):
            resource.send_to(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")
