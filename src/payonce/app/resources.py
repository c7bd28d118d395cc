"""What the platform's own roles need from outside: the client of webhooks, and the Cloud Tasks server."""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from payonce.engine import webhooks
from payonce.engine.database.connections import Database
from payonce.engine.database.notifier import Notifier
from payonce.engine.messages.policy import override_from_environment
from payonce.kit.log import get_logger
from payonce.kit.outcomes import Invalid, Unavailable
from payonce.queues.cloudtasks.client import NO_PACKAGE, Config
from payonce.queues.cloudtasks.names import LOCAL_ACCOUNT, LOCAL_PROJECT, ProjectLocation
from payonce.settings import Settings

if TYPE_CHECKING:
    from payonce.taskserver.server import CloudTasksServer

TASK_SERVER_HOST: Final = "127.0.0.1"
TASK_SERVER_PORT: Final = 8123
"""Where our own Cloud Tasks server listens, and where single roles look for it."""

log = get_logger(__name__)


@asynccontextmanager
async def open_webhooks(settings: Settings, database: Database) -> AsyncIterator[Sequence[object]]:
    """What webhooks are delivered with. Its policy is the environment's, as the queue's is."""
    async with webhooks.webhook_client(allow_private=settings.webhook_private) as http:
        yield [webhooks.Sender(http, database, settings.keyring(), override_from_environment(webhooks.DELIVERIES))]


def cloud_tasks(settings: Settings, address: str | None = None) -> Config:
    """Where pushed queues are brought from: Google's project, a server that is named, or the one in this process."""
    location = ProjectLocation(settings.cloud_tasks_project or LOCAL_PROJECT, settings.cloud_tasks_location)
    if settings.cloud_tasks_project is not None and settings.cloud_tasks_endpoint is None:
        if settings.cloud_tasks_service_account is None:
            raise Invalid(
                "CLOUD_TASKS_PROJECT_ID is set and CLOUD_TASKS_SERVICE_ACCOUNT is not; name the account for "
                "which Cloud Tasks signs its calls, or anybody could make them"
            )
        return Config(
            location, settings.cloud_tasks_service_account, verified_by_platform=settings.access.verified_by_platform
        )
    here = address or _told_address(settings) or f"{TASK_SERVER_HOST}:{TASK_SERVER_PORT}"
    account = settings.cloud_tasks_service_account or LOCAL_ACCOUNT
    return Config(location, account, settings.cloud_tasks_endpoint or here, partial(task_server_token, settings))


def task_server_token(settings: Settings) -> str:
    try:
        return settings.access.task_server_token(settings.data_dir)
    except OSError as error:
        raise Unavailable(
            f"{settings.data_dir} cannot keep the token of the Cloud Tasks server ({error.strerror}); set "
            "CLOUD_TASKS_TOKEN to the same value for the server and its callers"
        ) from error


@asynccontextmanager
async def open_task_server(
    settings: Settings, database: Database, notifier: Notifier
) -> AsyncIterator["TaskServer | None"]:
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
                open_server(database, notifier, TASK_SERVER_HOST, TASK_SERVER_PORT, token=token, dispatching=False)
            )
        except Unavailable:
            server = await stack.enter_async_context(
                open_server(database, notifier, TASK_SERVER_HOST, 0, token=token, dispatching=False)
            )
            log.warning(
                "cloud_tasks_port_taken",
                wanted=TASK_SERVER_PORT,
                instead=server.address,
                for_other_processes=f"CLOUD_TASKS_ENDPOINT={server.address}",
            )
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
