"""The command line: one file per group of commands.

Modules here import at the top only what is cheap: `payonce --help` must not load a database driver.
"""

import re
import sys
from collections.abc import Sequence
from typing import Annotated, Final

import typer

from payonce import __version__
from payonce.cli import (
    approvals,
    audit,
    cloudtasks,
    console,
    crash,
    db,
    effects,
    freeze,
    keys,
    limits,
    outbox,
    quarantine,
    queues,
    reconcile,
    serve,
    simulators,
    trace,
    users,
    webhooks,
)
from payonce.cli.arguments import ServiceOption
from payonce.cli.demo import command
from payonce.cli.errors import EXIT_INTERRUPTED, EXIT_INVALID, explained, say_error
from payonce.cli.mounts import Platform, ServiceHelp, lazy_command, lazy_help, mount, placeholder, service_help
from payonce.cli.output import note

# The mark \b keeps the lines of a paragraph as they are.
HELP: Final = """Money moves once: durable queues and recorded effects on PostgreSQL.

Without DATABASE_URL, a private PostgreSQL is started and migrated automatically.

\b
Examples:
  payonce demo              see that killed workers and faulty banks lose no money
  payonce up                run every role in this process, with HTTP on port 8080
  payonce console           print the link to the console
  payonce run tally.worker  run one role; start as many of these as you like
  payonce queues list       list queues and their messages by state
  payonce trace ID          follow one message or payment
  payonce audit run         check ledger, effects and invariants
  payonce effects list      list vendor calls with an open outcome
  payonce freeze add …      stop vendor calls at once
  payonce keys add …        create a key for the HTTP API
{services}
  payonce webhooks …        manage webhook endpoints and deliveries
  payonce cloudtasks        run a server of the Cloud Tasks API
  payonce simulators        run the simulated vendors for several processes
"""

SERVICE_HELP: Final = service_help()


def _examples(services: Sequence[ServiceHelp]) -> str:
    return "\n".join(f"  {command:<25} {what}" for each in services for command, what in each.examples.items())


app = typer.Typer(
    name="payonce",
    cls=Platform,
    help=HELP.format(services=_examples(SERVICE_HELP)),
    no_args_is_help=True,
    # Plain help takes half the time and preserves the lines of examples.
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _show_version(asked: bool) -> None:
    if asked:
        print(f"payonce {__version__}")
        raise typer.Exit


@app.callback()
def _about(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    service: ServiceOption = None,
) -> None: ...


app.command("up")(serve.up)
app.command("run", cls=lazy_help(serve.run_help), help=serve.RUN_SUMMARY)(serve.run)
app.command("console")(console.console)
app.command("demo", cls=lazy_command(command.build_demo), help=command.SUMMARY)(placeholder)
app.add_typer(queues.commands, name="queues")
app.add_typer(outbox.commands, name="outbox")
app.command("trace")(trace.trace)
app.add_typer(audit.commands, name="audit")
app.add_typer(effects.commands, name="effects")
app.add_typer(freeze.commands, name="freeze")
app.add_typer(limits.commands, name="limits")
app.add_typer(approvals.commands, name="approvals")
app.add_typer(users.commands, name="users")
app.add_typer(keys.commands, name="keys")
db.commands.add_typer(quarantine.commands, name="quarantine")
app.add_typer(db.commands, name="db")
app.add_typer(reconcile.commands, name="reconcile")
app.add_typer(webhooks.commands, name="webhooks")
mount(app, SERVICE_HELP)
app.command("crash")(crash.crash)
app.command("cloudtasks")(cloudtasks.cloudtasks)
app.command("simulators", cls=lazy_command(simulators.build_simulators), help=simulators.SUMMARY)(placeholder)


def main() -> None:
    sys.exit(run_command(sys.argv[1:]))


def run_command(arguments: Sequence[str]) -> int:
    """Returns the exit code. Expected errors print one sentence on stderr; a traceback means a bug."""
    try:
        code = app(args=list(arguments), prog_name="payonce", standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    except Exception as error:
        if format_usage_error := getattr(error, "format_message", None):
            message = _clarified(str(format_usage_error()), arguments)
            if message.startswith("Usage:"):
                # A group without a command answers with its help.
                note(message)
            else:
                say_error(f"{message} (see: {_command_of(error)} --help)")
            return EXIT_INVALID
        if (known := explained(error)) is None:
            raise
        say_error(known.sentence)
        return known.exit_code
    return code if isinstance(code, int) else 0


def _clarified(message: str, arguments: Sequence[str]) -> str:
    """The parser takes a negative number for an option; the message then says so."""
    negative = next((each for each in arguments if re.fullmatch(r"-\.?[0-9][0-9.,_eE]*", each)), None)
    if negative is not None and message.startswith("No such option"):
        return f"{negative!r} is below zero; amounts and numbers are written without a sign"
    return message


def _command_of(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    return "payonce" if context is None else str(context.command_path)
