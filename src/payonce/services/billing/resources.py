"""External resources of billing's services: the card gateway, the client of the other service and the token verifier;
and the parts of the services that a database holds."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager
from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from payonce.engine.database.connections import Database
from payonce.engine.database.rate_limits import SharedBudget, budget_share
from payonce.engine.messages.transaction import Reader
from payonce.engine.monitoring.vendor_calls import call_observer
from payonce.kit.log import get_logger
from payonce.kit.outcomes import Invalid
from payonce.service import Forwarding, Service
from payonce.services.billing import payments, subscriptions
from payonce.services.billing.api.tokens import Tokens
from payonce.services.billing.payments.api.gateway_events import GatewayEventReceiver
from payonce.services.billing.payments.handlers.notifications import NotificationSender, open_notification_sender
from payonce.services.billing.payments.store.token_versions import RemoteVersions
from payonce.services.billing.policies import PAYMENTS_QUEUES
from payonce.services.billing.settings import (
    PAYMENTS,
    PORTS,
    SUBSCRIPTIONS,
    BillingSettings,
    jwt_keys,
    notification_secrets,
)
from payonce.services.billing.signed_requests import SharedSecrets, open_signed_client
from payonce.services.billing.subscriptions.handlers.payments_relay import PaymentsRelay, waiting_for_payments
from payonce.services.billing.subscriptions.resources import MINUTE_S, subscription_resources
from payonce.settings import Settings, revealed

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from payonce.http.kit.context import AppContext
    from payonce.kit.webhooks import Secret
    from payonce.vendors.gateway.simulator import GatewaySimulator

LOOPBACK: Final = "127.0.0.1"
SIMULATED_KEY: Final = "simulated"
WEBHOOKS_EVERY_S: Final = 0.2
WEBHOOK_TIMEOUT_S: Final = 5.0
"""Per webhook of the simulated gateway, which does not wait for slow receivers."""
ANY_ADDRESS: Final = frozenset({"", "::", "0.0.0.0"})  # noqa: S104 - where somebody listens, and nobody calls


log = get_logger(__name__)


def subscriptions_in(service: Service, settings: Settings) -> Service | None:
    if not settings.of(BillingSettings).holds(SUBSCRIPTIONS):
        return None
    if settings.of(BillingSettings).holds(PAYMENTS):
        return service
    return replace(
        service,
        invariants={**service.invariants, **subscriptions.APART_INVARIANTS},
        references={**service.references, **subscriptions.APART_REFERENCES},
        forwards=open_payments_relay,
    )


def payments_in(service: Service, settings: Settings) -> Service | None:
    if not settings.of(BillingSettings).holds(PAYMENTS):
        return None
    shared = settings.of(BillingSettings).holds(SUBSCRIPTIONS)
    more = payments.SHARED_INVARIANTS if shared else payments.APART_INVARIANTS
    return replace(service, invariants={**service.invariants, **more})


async def check_billing_held(settings: Settings, read: Reader) -> None:
    """Rejects a database that holds other billing services than BILLING_DATABASE says. With a wrong setting payments
    would charge without cards, and subscriptions would wait for charges that never happen."""
    billing = settings.of(BillingSettings)
    for role, is_used in ((SUBSCRIPTIONS, subscriptions.is_used), (PAYMENTS, payments.is_used)):
        if not billing.holds(role) and await is_used(read):
            raise Invalid(
                f"BILLING_DATABASE is {billing.database}, but this database has data of {role}; name another "
                "database in DATABASE_URL, or set BILLING_DATABASE=both if both services share this one"
            )
    if billing.holds(PAYMENTS) and (waiting := await waiting_for_payments(read)):
        raise Invalid(
            f"{waiting:,} messages in this database wait for payments with a database of its own; keep "
            "BILLING_DATABASE=subscriptions until `payonce outbox list` shows none"
        )


@asynccontextmanager
async def open_subscriptions(settings: Settings, database: Database) -> AsyncIterator[Sequence[object]]:
    """Opens the resources of subscriptions. No role starts without secrets (`Settings.check_roles`)."""
    yield subscription_resources(settings, database)


@asynccontextmanager
async def open_payments(settings: Settings, database: Database) -> AsyncIterator[Sequence[object]]:
    """Opens the resources of payments. No role starts without secrets (`Settings.check_roles`), but the gateway's
    statement can be read without them. A process that also runs subscriptions checks tokens against its own accounts:
    those `Tokens` come first."""
    billing = settings.of(BillingSettings)
    url = billing.subscription_service_url or f"http://{LOOPBACK}:{PORTS[SUBSCRIPTIONS]}"
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(open_gateway(settings, database))
        if not settings.embedded and None in (billing.jwt_secret_key, settings.webhook_signing_secret):
            yield gateway
            return
        secrets = notification_secrets(settings)
        notifier = await stack.enter_async_context(open_notification_sender(url, secrets, database))
        client = await stack.enter_async_context(open_signed_client("subscriptions", url, secrets, Reader(database)))
        yield [
            *gateway,
            notifier,
            GatewayEventReceiver(billing.gateway_secrets(settings.data_dir if settings.embedded else None)),
            Tokens(jwt_keys(settings), RemoteVersions(client), access_s=billing.access_minutes * MINUTE_S),
            SharedSecrets(secrets, settings.webhook_tolerance_s),
        ]


@asynccontextmanager
async def open_gateway(settings: Settings, database: Database) -> AsyncIterator[Sequence[object]]:
    """The client of the card gateway, and the simulator behind it if neither key nor URL is set."""
    from payonce.kit.http import HttpClient
    from payonce.vendors.gateway import port
    from payonce.vendors.gateway.client import GatewayClient

    billing = settings.of(BillingSettings)
    key, url = revealed(billing.gateway_api_key), billing.gateway_url
    if (key is None) != (url is None):
        named, missing = ("GATEWAY_URL", "GATEWAY_API_KEY")[:: 1 if key is None else -1]
        raise Invalid(f"{named} is set and {missing} is not; set both, or neither to simulate the gateway")
    budget = SharedBudget(database, "gateway", *budget_share(port, billing.gateway_per_s), port.TURN_MAX_S)
    if key is not None:
        # The operator configured the URL, which may be in their own network.
        async with HttpClient("gateway", url, timeout_s=billing.gateway_answer_s, allow_private=True) as http:
            yield [GatewayClient(http, key, budget, watch=call_observer("gateway"))]
        return
    with simulated_gateway(settings) as simulator:
        async with HttpClient("gateway", "https://gateway.example", transport=simulator) as http:
            yield [GatewayClient(http, SIMULATED_KEY, budget, watch=call_observer("gateway")), simulator]


@contextmanager
def simulated_gateway(settings: Settings) -> Iterator["GatewaySimulator"]:
    """The simulator, with the records that it kept in the data folder."""
    from payonce.vendors.gateway.simulator import GatewaySimulator

    journal = settings.simulators_dir / "gateway.journal"
    log.warning("vendor_simulated", vendor="gateway", journal=str(journal), instead="set GATEWAY_URL")
    with closing(GatewaySimulator(journal)) as simulator:
        yield simulator


@asynccontextmanager
async def delivering_webhooks(
    simulator: "GatewaySimulator", url: str, secrets: "Sequence[Secret]"
) -> AsyncIterator[None]:
    """Within the context, the simulated gateway posts its due webhooks to this URL."""
    from payonce.kit.http import HttpClient

    async def keep_telling(http: HttpClient) -> None:
        while True:
            await simulator.deliver(http, secrets)
            await asyncio.sleep(WEBHOOKS_EVERY_S)

    async with HttpClient("gateway-webhooks", url, timeout_s=WEBHOOK_TIMEOUT_S, allow_private=True) as http:
        task = asyncio.create_task(keep_telling(http), name="gateway webhooks")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def open_payments_relay(settings: Settings, database: Database) -> AsyncIterator[Forwarding]:
    """Forwards messages to payments with a database of its own."""
    url = settings.of(BillingSettings).payment_service_url or f"http://{LOOPBACK}:{PORTS[PAYMENTS]}"
    queues = frozenset(policy.queue for policy in PAYMENTS_QUEUES)
    if not settings.embedded and settings.webhook_signing_secret is None:
        # A command, which sends messages and relays none: no role starts without the secret.
        yield Forwarding(queues, PaymentsRelay(None))
        return
    async with open_signed_client("payments", url, notification_secrets(settings), Reader(database)) as client:
        yield Forwarding(queues, PaymentsRelay(client))


def simulated_cards(context: "AppContext") -> "ASGIApp":
    """Lets a browser send its card to the gateway that is simulated in this process. It only creates tokens, as the
    real gateway does for browsers, which have no key; charges go through payments."""

    async def answer(scope: "Scope", receive: "Receive", send: "Send") -> None:
        # Imported late: few processes serve this route.
        from payonce.http.kit.problems import Problem, document
        from payonce.vendors.gateway.simulator import TOKENS, GatewaySimulator

        simulator = next((each for each in context.resources if isinstance(each, GatewaySimulator)), None)
        place: str = scope["root_path"]
        asked = scope["path"].removeprefix(place)
        if simulator is None or asked != TOKENS or scope["method"] != "POST":
            here = f"if it is simulated in this process, with POST {place}{TOKENS}"
            problem = Problem(HTTPStatus.NOT_FOUND, f"send cards to the gateway itself; {here}")
            await document(scope["path"], problem, scope["state"].get("trace_id"))(scope, receive, send)
            return
        await simulator({**scope, "path": asked, "raw_path": asked.encode(), "root_path": ""}, receive, send)

    return answer


def notify_this_process(resources: Sequence[object], settings: Settings, roles: Sequence[str], port: int) -> None:
    """Called when this process listens. If it runs subscriptions and no other URL is configured, payments sends its
    notifications to this process."""
    if settings.of(BillingSettings).subscription_service_url is not None or SUBSCRIPTIONS not in roles:
        return
    host = LOOPBACK if settings.host in ANY_ADDRESS else settings.host
    for resource in resources:
        if isinstance(resource, NotificationSender):
            resource.send_to(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")
