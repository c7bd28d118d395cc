"""`simulators`: the simulated vendors of all services, shared by several processes, until a signal."""

import signal
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from payonce.cli.errors import EXIT_INTERRUPTED
from payonce.cli.mounts import with_options
from payonce.cli.output import JsonOption, command_settings, loop_factory, run_async, show
from payonce.cli.serve import exit_with_parent, first_signal
from payonce.kit.collector import freeze_loaded_objects

if TYPE_CHECKING:
    from payonce.service import Simulators
    from payonce.settings import Settings

SUMMARY: Final = "Run the simulated vendors for roles in other processes."
HELP: Final = """Run the simulated {vendors} for roles of {services} in other processes.

Prints the variables that these processes need. No real money moves. State is kept in the data folder. SIGTERM or
Ctrl-C ends.

Example: payonce simulators {example}
"""


def build_simulators() -> Callable[..., None]:
    """Builds the command with the options of every service that has simulators."""
    from payonce.app.registry import SERVICES

    served = {service.name: service.simulators for service in SERVICES if service.simulators is not None}

    def simulators(
        host: Annotated[
            str, typer.Option("--host", help="Address to listen on; anybody who reaches it can pay.")
        ] = "127.0.0.1",
        as_json: JsonOption = False,
        parent: Annotated[int, typer.Option("--die-with", hidden=True)] = 0,
        **options: Any,
    ) -> None:
        if parent:
            exit_with_parent(parent)
        settings = command_settings(quiet=False)
        serving = _serve(settings, host, [*served.values()], options, as_json)
        stopped_by, environment = run_async(serving, loop_factory())
        show({"environment": environment, "stopped_by": stopped_by.name}, as_json)
        if stopped_by is signal.SIGINT:
            raise typer.Exit(EXIT_INTERRUPTED)

    help_text = HELP.format(
        vendors=_listed([vendor for each in served.values() for vendor in each.vendors]),
        services=_listed([*served]),
        example=next((each.example for each in served.values() if each.example), "--json"),
    )
    return with_options(simulators, [option for each in served.values() for option in each.options], help_text)


async def _serve(
    settings: "Settings", host: str, simulators: "list[Simulators]", options: Mapping[str, Any], as_json: bool
) -> tuple[signal.Signals, dict[str, str]]:
    from payonce.kit.log import get_logger

    log = get_logger(__name__)
    stop_signal = first_signal()
    addresses: dict[str, str] = {}
    environment: dict[str, str] = {}
    async with AsyncExitStack() as stack:
        for each in simulators:
            own = {option.name: options[option.name] for option in each.options}
            served = await stack.enter_async_context(each.serve(settings, host, **own))
            addresses.update(served.addresses)
            environment.update(served.environment)
        freeze_loaded_objects()
        log.info("simulators_listening", **addresses)
        if not as_json:
            print("\n".join(f"export {name}={value}" for name, value in environment.items()), flush=True)
        signalled = await stop_signal
    log.info("simulators_stopped", signal=signalled.name)
    return signalled, environment


def _listed(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names) or "vendors"
