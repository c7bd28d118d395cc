"""`webhooks`: who is told of what happens, what became of each telling, sending it again, and verifying by hand."""

from typing import Final

import typer

from payonce.cli.webhooks import deliveries, endpoints, signatures

HELP: Final = """Signed webhooks: who is told, what came of it, and sending it again.

\b
Examples:
  payonce webhooks endpoints add https://shop.example/hook --event 'invoice.*'
  payonce webhooks deliveries list --state failed
  payonce webhooks replay --endpoint 0199… --since 2026-01-31T12:00:00Z --why 'they were away' --yes
  payonce webhooks verify body.json --headers headers.txt
"""

commands = typer.Typer(help=HELP, no_args_is_help=True, rich_markup_mode=None)
commands.add_typer(endpoints.commands, name="endpoints")
commands.add_typer(deliveries.commands, name="deliveries")
commands.command("replay")(deliveries.replay)
commands.command("verify")(signatures.verify)
commands.command("secret")(signatures.secret)
