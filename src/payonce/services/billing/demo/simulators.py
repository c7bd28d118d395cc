"""The demo's simulated card gateway, on a loopback port for other processes."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Final

from payonce.kit.webhooks import Secret, new_secret
from payonce.services.billing.resources import delivering_webhooks
from payonce.testing.clock import MovedClock
from payonce.testing.faults import Fault, FaultPlan, Odds
from payonce.testing.faulty import Faulty, faulty_over_sockets
from payonce.testing.server import serving
from payonce.vendors.gateway.outbox import WebhookFaults
from payonce.vendors.gateway.simulator import GatewaySimulator

GATEWAY_TIMEOUT_S: Final = 1.0
"""How long a silent gateway blocks its caller."""


@dataclass(frozen=True)
class SimulatedGateway:
    simulator: GatewaySimulator
    clock: MovedClock
    endpoint: Faulty
    environment: dict[str, str]
    """The gateway's URL, key and secret, for billing processes."""
    secret: Secret

    def telling(self, url: str) -> AbstractAsyncContextManager[None]:
        """Within the context, the simulator posts its webhooks to this URL. For receivers that start after it."""
        return delivering_webhooks(self.simulator, url, [self.secret])

    async def deliver(self) -> None:
        """Completes all orders in flight, so that they are counted."""
        await self.endpoint.close()

    def faults(self) -> dict[str, int]:
        return {fault.value: self.endpoint.enacted[fault] for fault in Fault if self.endpoint.enacted[fault]}


@asynccontextmanager
async def open_simulated_gateway(
    seed: int = 1, faults: float = 0.0, *, webhooks_to: str | None = None, post: WebhookFaults | None = None
) -> AsyncIterator[SimulatedGateway]:
    """A card gateway of which the given share of calls fails. It posts webhooks to `webhooks_to`, if given."""
    clock, secret = MovedClock(), new_secret()
    simulator = GatewaySimulator(clock=clock, seed=seed, post=post, limit_per_s=None)
    quiet = {route: Odds(0.0) for route in ("GET /simulator", "POST /simulator", "POST /v1/tokens")}
    # A wrong figure in a statement cannot be told from a true one; everywhere else the client detects it.
    listed = {"GET /v1/balance_transactions": Odds(faults).without(Fault.WRONG_ANSWER)}
    endpoint = faulty_over_sockets(simulator, FaultPlan(seed, faults, routes=quiet | listed))
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(serving(endpoint if faults else simulator))
        if webhooks_to is not None:
            await stack.enter_async_context(delivering_webhooks(simulator, webhooks_to, [secret]))
        environment = {
            "GATEWAY_API_KEY": "stand-in",
            "GATEWAY_URL": url,
            "GATEWAY_WEBHOOK_SECRET": secret.reveal(),
            "GATEWAY_TIMEOUT_S": str(GATEWAY_TIMEOUT_S),
            "GATEWAY_REQUESTS_PER_S": "10000",
        }
        yield SimulatedGateway(simulator, clock, endpoint, environment, secret)
