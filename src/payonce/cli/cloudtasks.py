"""`cloudtasks`: a server of the Cloud Tasks API, which runs until a signal."""

import signal
from typing import TYPE_CHECKING, Annotated

import typer

from payonce.cli.errors import EXIT_INTERRUPTED
from payonce.cli.output import JsonOption, command_settings, loop_factory, run_async, show
from payonce.cli.serve import exit_with_parent, first_signal
from payonce.kit.collector import freeze_loaded_objects
from payonce.kit.outcomes import Unavailable

if TYPE_CHECKING:
    from payonce.settings import Settings


def cloudtasks(
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on; connections are not encrypted.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="Port for gRPC; 0 takes any free one.", min=0, max=65535)] = 8123,
    http_port: Annotated[
        int | None,
        typer.Option(
            "--http-port",
            help="Port for /metrics and probes; unset, 8124, or any free port if that is taken.",
            min=0,
            max=65535,
        ),
    ] = None,
    lock_names: Annotated[
        bool, typer.Option("--lock-names", help="Refuse the name of a deleted queue for 3 days, as Google may.")
    ] = False,
    without_token: Annotated[
        bool,
        typer.Option(
            "--without-token",
            help="Require no token: anybody who reaches the port can send requests as this machine and any account.",
        ),
    ] = False,
    as_json: JsonOption = False,
    parent: Annotated[int, typer.Option("--die-with", hidden=True)] = 0,
) -> None:
    """Run a durable server of the Google Cloud Tasks API, for Google's own clients.

    Tasks are stored in the private PostgreSQL, or in that of DATABASE_URL. SIGTERM or Ctrl-C drains.

    Clients send a token as metadata: CLOUD_TASKS_TOKEN, or the one in the file cloudtasks-token of the data folder.

    Example: payonce cloudtasks --port 9100
    """
    if parent:
        exit_with_parent(parent)
    try:
        import google.cloud.tasks_v2  # noqa: F401 - imported early, so that a missing extra is one clear sentence
        import grpc  # noqa: F401
    except ImportError as error:
        raise Unavailable("payonce cloudtasks needs the extra gcp; run: pip install 'payonce[gcp]'") from error
    from payonce.app.resources import task_server_token

    settings = command_settings(quiet=False)
    token = None if without_token else task_server_token(settings)
    stopped_by, address = run_async(_serve(settings, host, port, http_port, lock_names, token, as_json), loop_factory())
    show({"address": address, "stopped_by": stopped_by.name}, as_json)
    if stopped_by is signal.SIGINT:
        raise typer.Exit(EXIT_INTERRUPTED)


async def _serve(
    settings: "Settings",
    host: str,
    port: int,
    http_port: int | None,
    lock_names: bool,
    token: str | None,
    as_json: bool,
) -> tuple[signal.Signals, str]:
    from payonce.app.addresses import find_database
    from payonce.app.process import migrate_database
    from payonce.app.registry import all_migrations
    from payonce.app.resources import told_address
    from payonce.engine.database.connections import Database, check_login
    from payonce.engine.database.durability import check_durability
    from payonce.engine.database.notifier import Notifier
    from payonce.http.standalone import probe_server
    from payonce.kit.log import get_logger
    from payonce.taskserver.queue_store import NAME_LOCK_S
    from payonce.taskserver.server import connect_lines, open_server

    log = get_logger(__name__)
    stop_signal = first_signal()
    addresses = await find_database(settings)
    if settings.embedded:
        await migrate_database(addresses)
    lock_s = NAME_LOCK_S if lock_names else 0.0
    async with Database.open(addresses.service, application_name="payonce cloudtasks") as database:
        await database.check(all_migrations())
        await check_durability(database.engine, accepted=settings.accept_data_loss)
        await check_login(database.engine, **settings.access.accepted_logins(settings.embedded))
        async with (
            Notifier.open(database) as notifier,
            open_server(
                database, notifier, host, port, token=token, name_lock_s=lock_s, grace_s=settings.grace_s
            ) as server,
            probe_server(
                database, server.loops, host, http_port, settings.metrics, settings.access.allowed_hosts
            ) as url,
        ):
            freeze_loaded_objects()
            log.info("cloudtasks_listening", address=server.address, http=url)
            if not as_json:
                lines = connect_lines(server.address, _reads_token(settings, token))
                print(f"\nCloud Tasks listens on {server.address}. In Python:\n\n{lines}\n", flush=True)
            with told_address(settings, server.address):
                signalled = await stop_signal
            log.info("cloudtasks_draining", signal=signalled.name, grace_s=settings.grace_s)
        log.info("cloudtasks_stopped", address=server.address)
    return signalled, server.address


def _reads_token(settings: "Settings", token: str | None) -> str | None:
    """An expression that reads the token, since a terminal's output may be seen or logged."""
    from payonce.settings.access import TOKEN_FILE_NAME

    if token is None:
        return None
    if settings.access.cloud_tasks_token is not None:
        return '__import__("os").environ["CLOUD_TASKS_TOKEN"]'
    return f'__import__("pathlib").Path({str(settings.data_dir / TOKEN_FILE_NAME)!r}).read_text().strip()'
