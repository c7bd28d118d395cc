"""`simulators`: exchange, chain and card gateway for several processes, until a signal ends them."""

import signal
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from payonce.cli.errors import EXIT_INTERRUPTED
from payonce.cli.output import JsonOption, command_settings, loop_factory, run_async, show
from payonce.cli.serve import die_with, first_signal
from payonce.kit.collector import leave_what_is_loaded
from payonce.kit.outcomes import Invalid

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
    gateway_port: Annotated[
        int, typer.Option(help="Port of the card gateway; 0 takes any free one.", min=0, max=65535)
    ] = 9103,
    gateway_webhooks: Annotated[
        str | None, typer.Option(metavar="URL", help="Where the card gateway posts its webhooks; else it posts none.")
    ] = None,
    as_json: JsonOption = False,
    parent: Annotated[int, typer.Option("--die-with", hidden=True)] = 0,
) -> None:
    """Serve the simulated ChangeNOW, chain and card gateway that roles of payouts and billing in other processes share.

    Prints what to export for these. No real money moves. Their books stay in the data folder. SIGTERM or Ctrl-C ends.

    Example: payonce simulators --gateway-webhooks http://127.0.0.1:8002/v1/webhooks/gateway
    """
    if parent:
        die_with(parent)
    settings = command_settings(quiet=False)
    ports = exchange_port, chain_port, gateway_port
    stopped_by, environment = run_async(_serve(settings, host, ports, gateway_webhooks, as_json), loop_factory())
    show({"environment": environment, "stopped_by": stopped_by.name}, as_json)
    if stopped_by is signal.SIGINT:
        raise typer.Exit(EXIT_INTERRUPTED)


async def _serve(
    settings: "Settings", host: str, ports: tuple[int, int, int], webhooks_to: str | None, as_json: bool
) -> tuple[signal.Signals, dict[str, str]]:
    from payonce.app.resources import SIMULATED_KEY, simulated_changenow, simulated_gateway, telling
    from payonce.kit.http import Unsendable, parse_url
    from payonce.kit.log import get_logger
    from payonce.services.payouts.resources import simulated_chain
    from payonce.testing.server import serving

    log = get_logger(__name__)
    if webhooks_to is not None:
        try:
            parse_url(webhooks_to)
        except Unsendable:
            raise Invalid(
                f"--gateway-webhooks is {webhooks_to[:80]!r}; it must be an address such as "
                "http://127.0.0.1:8002/v1/webhooks/gateway"
            ) from None
    told = first_signal()
    async with AsyncExitStack() as stack:
        changenow = stack.enter_context(simulated_changenow(settings))
        gateway = stack.enter_context(simulated_gateway(settings))
        node = await stack.enter_async_context(simulated_chain(settings, changenow))
        exchange_url = await stack.enter_async_context(serving(changenow, host, ports[0]))
        chain_url = await stack.enter_async_context(serving(node, host, ports[1]))
        gateway_url = await stack.enter_async_context(serving(gateway, host, ports[2]))
        secrets = settings.billing.gateway_secrets(settings.data_dir)
        if webhooks_to is not None:
            await stack.enter_async_context(telling(gateway, webhooks_to, secrets))
        environment = {
            "CHANGENOW_API_KEY": SIMULATED_KEY, "CHANGENOW_URL": exchange_url, "PAYONCE_CHAIN_URL": chain_url,
            "GATEWAY_API_KEY": SIMULATED_KEY, "GATEWAY_URL": gateway_url,
            "GATEWAY_WEBHOOK_SECRET": secrets[0].reveal(),
        }  # fmt: skip
        leave_what_is_loaded()
        log.info("simulators_listening", exchange=exchange_url, chain=chain_url, gateway=gateway_url)
        if not as_json:
            print("\n".join(f"export {name}={value}" for name, value in environment.items()), flush=True)
        signalled = await told
    log.info("simulators_stopped", signal=signalled.name)
    return signalled, environment
