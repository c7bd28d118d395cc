"""The simulated card gateway on a port of its own, for roles in several processes."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from payonce.kit.http import Unsendable, parse_url
from payonce.kit.outcomes import Invalid
from payonce.service import Served
from payonce.services.billing.resources import SIMULATED_KEY, delivering_webhooks, simulated_gateway
from payonce.services.billing.settings import BillingSettings
from payonce.settings import Settings
from payonce.testing.server import serving


@asynccontextmanager
async def serve(
    settings: Settings, host: str, *, gateway_port: int, gateway_webhooks: str | None
) -> AsyncIterator[Served]:
    """Raises Invalid for a malformed webhook URL."""
    if gateway_webhooks is not None:
        _check(gateway_webhooks)
    async with AsyncExitStack() as stack:
        gateway = stack.enter_context(simulated_gateway(settings))
        url = await stack.enter_async_context(serving(gateway, host, gateway_port))
        secrets = settings.of(BillingSettings).gateway_secrets(settings.data_dir)
        if gateway_webhooks is not None:
            await stack.enter_async_context(delivering_webhooks(gateway, gateway_webhooks, secrets))
        environment = {
            "GATEWAY_API_KEY": SIMULATED_KEY,
            "GATEWAY_URL": url,
            "GATEWAY_WEBHOOK_SECRET": secrets[0].reveal(),
        }
        yield Served({"gateway": url}, environment)


def _check(url: str) -> None:
    try:
        parse_url(url)
    except Unsendable:
        raise Invalid(
            f"--gateway-webhooks is {url[:80]!r}; it must be a URL such as http://127.0.0.1:8002/v1/webhooks/gateway"
        ) from None
