"""`up` and `run`: worker processes, which run until a signal."""

import asyncio
import os
import signal
import sys
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from payonce.cli.arguments import ServiceOption
from payonce.cli.errors import EXIT_INTERRUPTED
from payonce.cli.listeners import registered
from payonce.cli.output import JsonOption, command_settings, loop_factory, note, run_async, show
from payonce.kit.collector import freeze_loaded_objects
from payonce.kit.outcomes import Invalid, Unavailable

if TYPE_CHECKING:
    from payonce.app.process import App
    from payonce.settings import Settings

PR_SET_PDEATHSIG: Final = 1
"""From linux/prctl.h."""

PortOption = Annotated[
    int | None, typer.Option("--port", help="Port for HTTP; 0 takes any free one.", min=0, max=65535)
]


def up(port: PortOption = None, service: ServiceOption = None, as_json: JsonOption = False) -> None:
    """Run every role in this process, with the HTTP API and the console.

    Example: payonce up --port 9000
    """
    from payonce.app.registry import runnable_roles

    settings = command_settings(quiet=False)
    _run(settings, runnable_roles(settings), settings.port if port is None else port, as_json)


RUN_SUMMARY: Final = "Run only these roles. Any number of processes can run, on any number of machines."
RUN_HELP: Final = """{summary}
{ports}
SIGTERM or Ctrl-C drains: nothing new is claimed, and running work gets PAYONCE_GRACE_S seconds. A second one exits.

\b
Examples:
  payonce run tally.worker --port 9001
  payonce run --service hello:SERVICE
"""


def run_help() -> str:
    """The help text, with the default ports of roles."""
    from payonce.app.registry import usual_ports

    alone = ", ".join(f"{role} alone on {port}" for role, port in usual_ports().items())
    ports = f"\n{alone.replace(' on ', ' listens on port ', 1)}, the first of each on a machine.\n" if alone else ""
    return RUN_HELP.format(summary=RUN_SUMMARY, ports=ports)


def run(
    roles: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ROLE...", help="Such as tally.worker. Default: all roles of the services named by --service."
        ),
    ] = None,
    port: PortOption = None,
    service: ServiceOption = None,
    as_json: JsonOption = False,
    parent: Annotated[int, typer.Option("--die-with", hidden=True)] = 0,
) -> None:
    if parent:
        exit_with_parent(parent)
    _run(command_settings(quiet=False), roles or _named_roles(), port, as_json)


def _named_roles() -> list[str]:
    from payonce.app.assembly import roles_of
    from payonce.app.registry import named_services, role_names

    if roles := roles_of(named_services()):
        return roles
    roles_known = ", ".join(role_names())
    raise Invalid(f"no role is named; give roles or --service MODULE:NAME; roles are: {roles_known}")


def _run(settings: "Settings", roles: list[str], port: int | None, as_json: bool) -> None:
    stopped_by = run_async(_serve(settings, roles, port, as_json), loop_factory())
    show({"roles": roles, "stopped_by": stopped_by.name}, as_json)
    if stopped_by is signal.SIGINT:
        raise typer.Exit(EXIT_INTERRUPTED)


async def _serve(settings: "Settings", roles: list[str], port: int | None, as_json: bool) -> signal.Signals:
    from payonce.app.process import App
    from payonce.app.registry import SERVICES
    from payonce.kit.log import get_logger

    log = get_logger(__name__)
    stop_signal = first_signal()
    async with App.open(settings, roles) as app, AsyncExitStack() as stack:
        if port is None and app.pushes_here:
            # A task service pushes the work: a process that does not listen would get none.
            port = settings.port
        listens_on = await _listen(app, settings, roles, port, stack)
        if listens_on is not None:
            stack.enter_context(registered(settings.data_dir, settings.host, listens_on))
            for service in SERVICES:
                if service.listens is not None:
                    service.listens(app.resources, settings, roles, listens_on)
            await _show_console_access(app, settings.host, listens_on, as_json)
        freeze_loaded_objects()
        app.start()
        log.info("worker_started", roles=roles, process=app.process_name)
        signalled = await _wait_for_end(app, stop_signal)
        log.info("worker_draining", signal=signalled.name, grace_s=settings.grace_s)
        await app.stop()
        log.info("worker_stopped", process=app.process_name)
    return signalled


async def _listen(
    app: "App", settings: "Settings", roles: list[str], port: int | None, stack: AsyncExitStack
) -> int | None:
    """Returns the port, if this process listens. It does until the work is drained, so that probes see a live process.

    A role with a default port listens there; a second process of it on the machine works without listening."""
    from payonce.app.registry import usual_port

    wanted = usual_port(settings, roles) if port is None else port
    if wanted is None:
        return None
    from payonce.http.server import listening

    try:
        return await stack.enter_async_context(listening(app, settings.host, wanted))
    except Unavailable:
        if port is not None:
            raise
        from payonce.kit.log import get_logger

        get_logger(__name__).warning("http_port_taken", wanted=wanted, choose_with="--port")
        return None


async def _show_console_access(app: "App", host: str, port: int, as_json: bool) -> None:
    """Until the first login exists: prints the console's link on loopback, elsewhere how to create a login. The link
    is printed to a terminal only, since a pipe or file is often a log with other readers."""
    import structlog

    from payonce.console.auth import is_loopback
    from payonce.console.ticket import link_with
    from payonce.engine.operators import people

    if await people(app.read):
        return
    log = structlog.get_logger(__name__)
    if is_loopback(host):
        if sys.stdout.isatty() and not as_json:
            print(f"\nThe console: {link_with(app.console_token(), host, port)}\n", flush=True)
        else:
            log.info("console_ready", print_its_link_with=f"payonce console --port {port}")
    else:
        log.warning("console_has_no_logins", host=host, add_with="payonce users add NAME --role approver")


async def _wait_for_end(app: "App", stop_signal: "asyncio.Future[signal.Signals]") -> signal.Signals:
    """Returns the signal. A loop that ends by itself is an error: the process would look healthy without its roles."""
    watched: list[asyncio.Future[Any]] = [stop_signal, *app.loops.values()]
    done, _ = await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
    if stop_signal in done:
        return stop_signal.result()
    for name, task in app.loops.items():
        if task in done:
            if isinstance(error := task.exception(), Invalid):
                raise error
            raise Unavailable(f"the {name} loop ended unexpectedly; restart the process") from task.exception()
    raise AssertionError("nothing ended")


def first_signal() -> "asyncio.Future[signal.Signals]":
    """Resolved by the first SIGTERM or SIGINT; the second ends the process immediately."""
    loop = asyncio.get_running_loop()
    stop_signal: asyncio.Future[signal.Signals] = loop.create_future()

    def receive(received: signal.Signals) -> None:
        if stop_signal.done():
            note("second signal: exiting now; running messages are recovered when their leases expire")
            os._exit(128 + received)
        stop_signal.set_result(received)

    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, receive, each)
    return stop_signal


def exit_with_parent(parent: int) -> None:
    """Lets the kernel kill this process when its parent dies, so that a killed demonstration leaves no workers."""
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        # The parent died before the request to the kernel.
        os._exit(128 + signal.SIGKILL)
