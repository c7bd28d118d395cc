"""The simulated card gateway of the demonstration, on a port of the loopback for other processes."""

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
"""What a gateway that keeps silent costs whoever asked it."""


@dataclass(frozen=True)
class SimulatedGateway:
    simulator: GatewaySimulator
    clock: MovedClock
    endpoint: Faulty
    environment: dict[str, str]
    """Where processes of billing find it, and with which key and secret."""
    secret: Secret

    def telling(self, url: str) -> AbstractAsyncContextManager[None]:
        """Meanwhile it posts its webhooks there, for whoever has an address only when this one is known."""
        return delivering_webhooks(self.simulator, url, [self.secret])

    async def deliver(self) -> None:
        """Orders that are still under way land now, so that they are seen."""
        await self.endpoint.close()

    def faults(self) -> dict[str, int]:
        return {fault.value: self.endpoint.enacted[fault] for fault in Fault if self.endpoint.enacted[fault]}


@asynccontextmanager
async def open_simulated_gateway(
    seed: int = 1, faults: float = 0.0, *, webhooks_to: str | None = None, post: WebhookFaults | None = None
) -> AsyncIterator[SimulatedGateway]:
    """The card gateway, of whose calls this share goes wrong. It posts webhooks, if anywhere, to `webhooks_to`."""
    clock, secret = MovedClock(), new_secret()
    simulator = GatewaySimulator(clock=clock, seed=seed, post=post, limit_per_s=None)
    quiet = {route: Odds(0.0) for route in ("GET /simulator", "POST /simulator", "POST /v1/tokens")}
    # A wrong figure in the statement cannot be told from a true one; everywhere else the client notices.
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
