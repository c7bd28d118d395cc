"""`console`: the link under which the console lets in whoever sits at this machine."""

from typing import Annotated

import typer

from payonce.cli.output import JsonOption, command_settings, opened, run_async, show
from payonce.kit.outcomes import Unavailable


def console(
    port: Annotated[
        int | None, typer.Option(help="The port that `payonce up` listens on, if not PAYONCE_PORT.", min=1, max=65535)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print the console's link once more, as `payonce up` did when it started.

    While nobody has a login, only this link lets anybody in. It belongs to the data folder, so ask with the same
    PAYONCE_DATA_DIR, or in the same folder, as the process that serves it.

    Example: payonce console
    """

    async def act() -> None:
        from payonce.console.links import ROOT
        from payonce.console.ticket import link_with
        from payonce.engine.people import people

        settings = command_settings(quiet=True)
        chosen = settings.port if port is None else port
        async with opened() as app:
            logins = bool(await people(app.read))
        if logins:
            url = f"http://{settings.host}:{chosen}{ROOT}"
            show({"url": url, "login": True}, as_json, f"{url} (people have logins; the console asks for yours)")
            return
        try:
            url = link_with(settings.console_token(), settings.host, chosen)
        except OSError as error:
            raise Unavailable(
                f"{settings.data_dir} cannot keep the link ({error.strerror}); `payonce up` printed one when it started"
            ) from error
        show({"url": url, "login": False}, as_json, url)

    run_async(act())
