"""`webhooks`: endpoints, deliveries, replays and signatures."""

from typing import Final

import typer

from payonce.cli.webhooks import deliveries, endpoints, signatures

HELP: Final = """Manage signed webhooks: endpoints, deliveries and replays.

\b
Examples:
  payonce webhooks endpoints add https://shop.example/hook --event 'invoice.*'
  payonce webhooks deliveries list --state failed
  payonce webhooks replay --endpoint 0199… --since 2026-01-31T12:00:00Z --why 'receiver outage' --yes
  payonce webhooks verify body.json --headers headers.txt
"""

commands = typer.Typer(help=HELP, no_args_is_help=True, rich_markup_mode=None)
commands.add_typer(endpoints.commands, name="endpoints")
commands.add_typer(deliveries.commands, name="deliveries")
commands.command("replay")(deliveries.replay)
commands.command("verify")(signatures.verify)
commands.command("secret")(signatures.secret)
