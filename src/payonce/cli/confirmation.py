"""The one question before a change: what it is about, and whether it is meant."""

import sys
from typing import TYPE_CHECKING

import typer

from payonce.cli.errors import EXIT_FAILED
from payonce.cli.output import note, rich_console
from payonce.kit.outcomes import Invalid

if TYPE_CHECKING:
    from rich.console import RenderableType


def confirm(what: str, question: str, *shown: "RenderableType", yes: bool, as_json: bool) -> None:
    """Ends the command unless a person agrees. To be called when it is known that the thing exists: whoever misspelt
    its name is told so, and not first to add --yes."""
    if yes:
        return
    if as_json or not sys.stdin.isatty():
        raise Invalid(f"{what} asks for confirmation, and here nobody can be asked; add --yes")
    for part in shown:
        rich_console().print(part)
    if not typer.confirm(question):
        note("nothing was changed")
        raise typer.Exit(EXIT_FAILED)
