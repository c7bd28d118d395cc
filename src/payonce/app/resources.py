"""What the services' handlers need from outside, opened: vendors' clients with their budgets, keys."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from payonce.engine import webhooks
from payonce.engine.database.connections import Database
from payonce.engine.database.notifier import Bell
from payonce.engine.database.rate_limits import SharedBudget
from payonce.engine.messages.policy import override_from_environment
from payonce.engine.monitoring.vendor_calls import watching
from payonce.kit.log import get_logger
from payonce.kit.outcomes import Invalid, Unavailable
from payonce.queues.cloudtasks.client import NO_PACKAGE, Config
from payonce.queues.cloudtasks.names import LOCAL_ACCOUNT, LOCAL_PROJECT, Place
from payonce.settings import Settings, revealed

if TYPE_CHECKING:
    from payonce.kit.webhooks import Secret
    from payonce.taskserver.server import CloudTasksServer
    from payonce.vendors.changenow.simulator import ChangeNowSimulator
    from payonce.vendors.gateway.simulator import GatewaySimulator

CHANGENOW_AT = "https://api.changenow.io"
SIMULATED_KEY = "simulated"
TELL_EVERY_S: Final = 0.2
TELL_TIMEOUT_S: Final = 5.0
"""Of one webhook of the simulated gateway, which waits for no slower receiver."""

TASK_SERVER_HOST: Final = "127.0.0.1"
TASK_SERVER_PORT: Final = 8123
"""Where our own Cloud Tasks server listens, and where single roles look for it."""

log = get_logger(__name__)


def turns_of(port: Any, allowed_per_s: float) -> tuple[float, int]:
    """Rate and burst, of what a key is allowed: the same shares as of what keys are allowed by default."""
    share = allowed_per_s / port.REQUESTS_PER_S
    return share * port.BUDGET_PER_S, max(1, int(share * port.BUDGET_BURST))


@asynccontextmanager
async def open_changenow(settings: Settings, database: Database) -> AsyncIterator[Sequence[object]]:
    """The client of ChangeNOW; and, when neither key nor address is set, the simulator behind it, for the simulated
    wallet to tell of deposits."""
    from payonce.kit.http import HttpClient
    from payonce.vendors.changenow import port
    from payonce.vendors.changenow.client import ChangeNowClient

    key, private_key = revealed(settings.changenow_api_key), revealed(settings.changenow_private_api_key)
    url = settings.changenow_url
    if key is None and url is not None:
        raise Invalid("CHANGENOW_URL is set and CHANGENOW_API_KEY is not; set both, or neither to have it simulated")
    budget = SharedBudget(database, "changenow", *turns_of(port, settings.payouts.changenow_per_s), port.TURN_MAX_S)

    def client(http: HttpClient, its_key: str) -> ChangeNowClient:
        return ChangeNowClient(http, its_key, budget, private_key=private_key, watch=watching("changenow"))

    if key is not None:
        root = (url or CHANGENOW_AT).rstrip("/").removesuffix("/v2")
        # The operator wrote the address: it may well lie in their own network.
        async with HttpClient(
            "changenow", root, timeout_s=settings.payouts.changenow_answer_s, allow_private=url is not None
        ) as http:
            yield [client(http, key)]
        return
    with simulated_changenow(settings) as simulator:
        async with HttpClient("changenow", "https://changenow.example", transport=simulator) as http:
            yield [client(http, SIMULATED_KEY), simulator]


@contextmanager
def simulated_changenow(settings: Settings) -> Iterator["ChangeNowSimulator"]:
    """With the books that it left in the data folder."""
    from payonce.vendors.changenow.simulator import ChangeNowSimulator
    from payonce.vendors.simulated import open_simulator

    journal = settings.simulators_dir / "changenow.journal"
    log.warning("vendor_simulated", vendor="changenow", journal=str(journal), instead="set CHANGENOW_API_KEY")
    with open_simulator("changenow", journal) as simulator:
        assert isinstance(simulator, ChangeNowSimulator)
        yield simulator


@asynccontextmanager
async def open_gateway(settings: Settings, database: Database) -> AsyncIterator[Sequence[object]]:
    """The client of the card gateway; and, when neither key nor address is set, the simulator behind it."""
    from payonce.kit.http import HttpClient
    from payonce.vendors.gateway import port
    from payonce.vendors.gateway.client import GatewayClient

    billing, key, url = settings.billing, revealed(settings.billing.gateway_api_key), settings.billing.gateway_url
    if (key is None) != (url is None):
        named, missing = ("GATEWAY_URL", "GATEWAY_API_KEY")[:: 1 if key is None else -1]
        raise Invalid(f"{named} is set and {missing} is not; set both, or neither to have the gateway simulated")
    budget = SharedBudget(database, "gateway", *turns_of(port, billing.gateway_per_s), port.TURN_MAX_S)
    if key is not None:
        # The operator wrote the address: it may well lie in their own network.
        async with HttpClient("gateway", url, timeout_s=billing.gateway_answer_s, allow_private=True) as http:
            yield [GatewayClient(http, key, budget, watch=watching("gateway"))]
        return
    with simulated_gateway(settings) as simulator:
        async with HttpClient("gateway", "https://gateway.example", transport=simulator) as http:
            yield [GatewayClient(http, SIMULATED_KEY, budget, watch=watching("gateway")), simulator]


@contextmanager
def simulated_gateway(settings: Settings) -> Iterator["GatewaySimulator"]:
    """With the books that it left in the data folder."""
    from payonce.vendors.gateway.simulator import GatewaySimulator
    from payonce.vendors.simulated import open_simulator

    journal = settings.simulators_dir / "gateway.journal"
    log.warning("vendor_simulated", vendor="gateway", journal=str(journal), instead="set GATEWAY_URL")
    with open_simulator("gateway", journal) as simulator:
        assert isinstance(simulator, GatewaySimulator)
        yield simulator


@asynccontextmanager
async def telling(simulator: "GatewaySimulator", url: str, secrets: "Sequence[Secret]") -> AsyncIterator[None]:
    """Meanwhile the simulated gateway posts its webhooks to this address as they come due."""
    from payonce.kit.http import HttpClient

    async def keep_telling(http: HttpClient) -> None:
        while True:
            await simulator.deliver(http, secrets)
            await asyncio.sleep(TELL_EVERY_S)

    async with HttpClient("gateway-webhooks", url, timeout_s=TELL_TIMEOUT_S, allow_private=True) as http:
        task = asyncio.create_task(keep_telling(http), name="gateway webhooks")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def open_webhooks(settings: Settings, database: Database) -> AsyncIterator[Sequence[object]]:
    """What webhooks are delivered with. Its policy is the environment's, as the queue's is."""
    async with webhooks.webhook_client(allow_private=settings.webhook_private) as http:
        yield [webhooks.Sender(http, database, settings.keyring(), override_from_environment(webhooks.DELIVERIES))]


def cloud_tasks(settings: Settings, address: str | None = None) -> Config:
    """Where pushed queues are brought from: Google's project, a server that is named, or the one in this process."""
    place = Place(settings.cloud_tasks_project or LOCAL_PROJECT, settings.cloud_tasks_location)
    if settings.cloud_tasks_project is not None and settings.cloud_tasks_endpoint is None:
        if settings.cloud_tasks_service_account is None:
            raise Invalid("CLOUD_TASKS_PROJECT_ID is set and CLOUD_TASKS_SERVICE_ACCOUNT is not; name the account for "
                          "which Cloud Tasks signs its calls, or anybody could make them")  # fmt: skip
        return Config(
            place, settings.cloud_tasks_service_account, verified_by_platform=settings.access.verified_by_platform
        )
    here = address or _told_address(settings) or f"{TASK_SERVER_HOST}:{TASK_SERVER_PORT}"
    account = settings.cloud_tasks_service_account or LOCAL_ACCOUNT
    return Config(place, account, settings.cloud_tasks_endpoint or here, partial(task_server_token, settings))


def task_server_token(settings: Settings) -> str:
    try:
        return settings.access.task_server_token(settings.data_dir)
    except OSError as error:
        raise Unavailable(
            f"{settings.data_dir} cannot keep the token of the Cloud Tasks server ({error.strerror}); set "
            "CLOUD_TASKS_TOKEN to the same value for the server and its callers"
        ) from error


@asynccontextmanager
async def open_task_server(settings: Settings, database: Database, bell: Bell) -> AsyncIterator["TaskServer | None"]:
    """Our own Cloud Tasks server. None where another one is named: then none is run here."""
    if settings.cloud_tasks_project is not None or settings.cloud_tasks_endpoint is not None:
        yield None
        return
    try:
        from payonce.taskserver.server import open_server
    except ImportError as error:
        raise Unavailable(NO_PACKAGE) from error
    token = task_server_token(settings)
    async with AsyncExitStack() as stack:
        try:
            server = await stack.enter_async_context(
                open_server(database, bell, TASK_SERVER_HOST, TASK_SERVER_PORT, token=token, dispatching=False)
            )
        except Unavailable:
            server = await stack.enter_async_context(
                open_server(database, bell, TASK_SERVER_HOST, 0, token=token, dispatching=False)
            )
            log.warning("cloud_tasks_port_taken", wanted=TASK_SERVER_PORT, instead=server.address,
                        for_other_processes=f"CLOUD_TASKS_ENDPOINT={server.address}")  # fmt: skip
        log.info("cloud_tasks_server_listening", address=server.address)
        with told_address(settings, server.address):
            yield TaskServer(server)


@contextmanager
def told_address(settings: Settings, address: str) -> Iterator[None]:
    """While our own server listens, commands and roles with the same data folder find it, whichever port it got."""
    path = settings.task_server_file
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{address}\n")
    except OSError as error:
        log.warning("cloud_tasks_address_not_kept", file=str(path), error=str(error))
    try:
        yield
    finally:
        with suppress(OSError):
            if path.read_text().strip() == address:
                path.unlink()


def _told_address(settings: Settings) -> str | None:
    try:
        return settings.task_server_file.read_text().strip() or None
    except OSError:
        return None


@dataclass(frozen=True)
class TaskServer:
    """It takes tasks from the moment it is open, and brings them when the process works: not to doors that are shut."""

    server: "CloudTasksServer"

    @property
    def address(self) -> str:
        return self.server.address

    async def run(self) -> None:
        await self.server.run()

    def stop(self) -> None:
        self.server.dispatcher.stop()
