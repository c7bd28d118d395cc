"""`simulators`: the exchange and the chain of payouts for several processes, until a signal ends them."""

import signal
from typing import TYPE_CHECKING, Annotated

import typer

from payonce.cli.errors import EXIT_INTERRUPTED
from payonce.cli.output import JsonOption, command_settings, loop_factory, run_async, show
from payonce.cli.serve import die_with, first_signal

if TYPE_CHECKING:
    from payonce.settings import Settings


def simulators(
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on; whoever reaches it may pay.")
    ] = "127.0.0.1",
    exchange_port: Annotated[
        int, typer.Option(help="Port of the exchange; 0 takes any free one.", min=0, max=65535)
    ] = 9101,
    chain_port: Annotated[int, typer.Option(help="Port of the chain; 0 takes any free one.", min=0, max=65535)] = 9102,
    as_json: JsonOption = False,
    parent: Annotated[int, typer.Option("--die-with", hidden=True)] = 0,
) -> None:
    """Serve the simulated ChangeNOW and the simulated chain that roles of payouts in other processes share.

    Prints what to export for these. No real money moves. Their books stay in the data folder. SIGTERM or Ctrl-C ends.

    Example: payonce simulators --exchange-port 9101 --chain-port 9102
    """
    if parent:
        die_with(parent)
    settings = command_settings(quiet=False)
    stopped_by, environment = run_async(_serve(settings, host, exchange_port, chain_port, as_json), loop_factory())
    show({"environment": environment, "stopped_by": stopped_by.name}, as_json)
    if stopped_by is signal.SIGINT:
        raise typer.Exit(EXIT_INTERRUPTED)


async def _serve(
    settings: "Settings", host: str, exchange_port: int, chain_port: int, as_json: bool
) -> tuple[signal.Signals, dict[str, str]]:
    from payonce.kit.log import get_logger
    from payonce.outside import SIMULATED_KEY, simulated_changenow
    from payonce.paying import simulated_chain
    from payonce.testing.serving import serving

    log = get_logger(__name__)
    told = first_signal()
    with simulated_changenow(settings) as changenow:
        async with (
            simulated_chain(settings, changenow) as node,
            serving(changenow, host, exchange_port) as exchange_url,
            serving(node, host, chain_port) as chain_url,
        ):
            environment = {
                "CHANGENOW_API_KEY": SIMULATED_KEY, "CHANGENOW_URL": exchange_url, "PAYONCE_CHAIN_URL": chain_url
            }  # fmt: skip
            log.info("simulators_listening", exchange=exchange_url, chain=chain_url)
            if not as_json:
                print("\n".join(f"export {name}={value}" for name, value in environment.items()), flush=True)
            signalled = await told
    log.info("simulators_stopped", signal=signalled.name)
    return signalled, environment
