"""The confirmation before a change."""

import sys
from typing import TYPE_CHECKING

import typer

from payonce.cli.errors import EXIT_FAILED
from payonce.cli.output import note, rich_console
from payonce.kit.outcomes import Invalid

if TYPE_CHECKING:
    from rich.console import RenderableType


def confirm(what: str, question: str, *shown: "RenderableType", yes: bool, as_json: bool) -> None:
    """Ends the command unless the operator agrees. Called after the object was found, so that a misspelt name is
    reported before --yes is asked for."""
    if yes:
        return
    if as_json or not sys.stdin.isatty():
        raise Invalid(f"{what} needs confirmation, and standard input is no terminal; add --yes")
    for part in shown:
        rich_console().print(part)
    if not typer.confirm(question):
        note("nothing was changed")
        raise typer.Exit(EXIT_FAILED)
