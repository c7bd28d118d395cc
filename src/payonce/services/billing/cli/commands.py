"""`billing`: plan migrations and customer credit."""

from typing import Final

import typer

from payonce.services.billing.cli import credit, plans

HELP: Final = """Migrate billing plans, and manage customer credit.

\b
Examples:
  payonce billing plans migrate basic-v1 --preview
  payonce billing plans migrations
  payonce billing credit show ada@example.com
"""


def build_commands() -> typer.Typer:
    commands = typer.Typer(help=HELP, no_args_is_help=True, rich_markup_mode=None)
    commands.add_typer(plans.commands, name="plans")
    commands.add_typer(credit.commands, name="credit")
    return commands
