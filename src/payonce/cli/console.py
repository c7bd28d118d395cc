"""`console`: the link that opens the console on this machine."""

from typing import TYPE_CHECKING, Annotated

import typer

from payonce.cli.listeners import Listener, listeners
from payonce.cli.output import JsonOption, command_settings, note, open_app, run_async, show
from payonce.kit.outcomes import Unavailable

if TYPE_CHECKING:
    from payonce.settings import Settings


def console(
    port: Annotated[
        int | None, typer.Option(help="The process on this port, if several listen.", min=1, max=65535)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print the link to the console, as `payonce up` does when it starts.

    Until the first login is created, the console opens only with this link. The link belongs to the data folder: run
    this with the same PAYONCE_DATA_DIR, or in the same folder, as the serving process.

    Example: payonce console
    """

    async def act() -> None:
        from payonce.console.auth import is_loopback
        from payonce.console.links import ROOT
        from payonce.console.ticket import link_with
        from payonce.engine.operators import people

        settings = command_settings(quiet=True)
        place = _address(settings, port)
        async with open_app() as app:
            logins = bool(await people(app.read))
        if logins:
            url = f"http://{place.host}:{place.port}{ROOT}"
            show({"url": url, "login": True}, as_json, f"{url} (logins exist; the console asks for yours)")
            return
        if not is_loopback(place.host):
            raise Unavailable(
                f"the console listens at {place.host}, where the link is not accepted; create the first login: "
                "payonce users add NAME --role approver"
            )
        try:
            url = link_with(settings.console_token(), place.host, place.port)
        except OSError as error:
            raise Unavailable(
                f"{settings.data_dir} cannot store the link ({error.strerror}); use the link that `payonce up` printed "
                "at its terminal, or create a login with: payonce users add NAME --role approver"
            ) from error
        show({"url": url, "login": False}, as_json, url)

    run_async(act())


def _address(settings: "Settings", port: int | None) -> Listener:
    """Where the console is served: on the given port, on PAYONCE_PORT, or on the lowest port in use."""
    found = listeners(settings.data_dir)
    if port is not None:
        return next((each for each in found if each.port == port), Listener(port, settings.host, 0))
    if found:
        others = ", ".join(str(each.port) for each in found)
        if len(found) > 1:
            note(f"{len(found)} processes of {settings.data_dir} listen, on ports {others}; choose one with --port")
        return next((each for each in found if each.port == settings.port), found[0])
    if not settings.port:
        raise Unavailable(f"no process of {settings.data_dir} is listening; start one with: payonce up")
    note(f"no process of {settings.data_dir} is listening; `payonce up` will listen here")
    return Listener(settings.port, settings.host, 0)
