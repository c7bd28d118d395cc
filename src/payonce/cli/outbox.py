"""`outbox`: the relays to external queues and logs, their lag, and operator actions."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from payonce.cli.arguments import ByOption, operator_name, parsed_id
from payonce.cli.confirmation import confirm
from payonce.cli.output import JsonOption, YesOption, open_app, run_async, show, table
from payonce.kit.words import counted

if TYPE_CHECKING:
    from payonce.app.process import App
    from payonce.engine.outbox import StoredEntry

PAGE_DEFAULT: Final = 20
PAYLOAD_SHOWN: Final = 120
PARKED: Final = "payonce outbox parked RELAY"

HELP: Final = """Inspect the outbox and control its relays.

\b
Examples:
  payonce outbox list
  payonce outbox parked events
  payonce outbox redrive events --id 0199…
  payonce outbox pause events --reason 'the broker moves'
"""

commands = typer.Typer(help=HELP, no_args_is_help=True, rich_markup_mode=None)

RelayArgument = Annotated[str, typer.Argument(metavar="RELAY", help="Its name; `payonce outbox list` shows them.")]
IdOption = Annotated[list[str] | None, typer.Option("--id", help="Only this entry; repeatable.")]


@commands.command("list")
def list_relays(as_json: JsonOption = False) -> None:
    """List relays with entries by state, age of the oldest due entry and pause status."""

    async def act() -> None:
        from payonce.engine.outbox import lag

        async with open_app() as app:
            found = await lag(app.database)
        columns = ("relay", "waiting", "delivered", "parked", "oldest s", "paused")
        rows = [(each.relay, each.waiting, each.delivered, each.parked, each.oldest_s, each.paused) for each in found]
        shown = table("Relays", columns, rows, right=columns[1:5])
        show({"relays": [asdict(each) for each in found]}, as_json, shown)

    run_async(act())


@commands.command("parked")
def parked(
    relay: RelayArgument,
    limit: Annotated[int, typer.Option(help="At most this many, up to 1000.")] = PAGE_DEFAULT,
    after: Annotated[str | None, typer.Option(help="Continue after this entry id, for the next page.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List parked entries with their reasons, in the order they were parked."""
    behind = None if after is None else parsed_id(after, PARKED)

    async def act() -> None:
        from payonce.engine.outbox import parked_entries

        async with open_app() as app:
            found = await parked_entries(app.database, relay, limit, behind)
        described = _described(found)
        following = described[-1]["id"] if len(described) == limit else None
        result = {"relay": relay, "entries": described, "next_after": following}
        show(result, as_json, _table(f"{relay}: parked", found) if found else f"no entry of {relay} is parked")

    run_async(act())


@commands.command("redrive")
def redrive(
    relay: RelayArgument,
    ids: IdOption = None,
    as_new: Annotated[
        bool,
        typer.Option(
            "--as-new", help="Include entries first tried too long ago; verify first that no receiver has taken them."
        ),
    ] = False,
    by: ByOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Redrive parked entries. Without --id, all of them."""
    chosen = [parsed_id(text, PARKED) for text in ids or ()]

    async def act() -> None:
        from payonce.engine.outbox import redrive_entries

        async with open_app() as app:
            if not yes:
                await _ask(app, relay, "a redrive", f"redrive {len(chosen) or 'all'} of them?", as_json)
            count = await redrive_entries(
                app.database, app.notifier, relay, by=operator_name(by), ids=chosen, as_new=as_new
            )
        show({"relay": relay, "redriven": count}, as_json, f"{counted(count, 'entry', 'entries')} of {relay} redriven")

    run_async(act())


@commands.command("discard")
def discard(
    relay: RelayArgument,
    ids: IdOption = None,
    why: Annotated[str, typer.Option(help="The reason, for the audit log.")] = "",
    by: ByOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Delete parked entries that must never be delivered. Each leaves a note in the audit log."""
    chosen = [parsed_id(text, PARKED) for text in ids or ()]

    async def act() -> None:
        from payonce.engine.outbox import discard_entries

        async with open_app() as app:
            if not yes:
                await _ask(app, relay, "a discard", f"delete {len(chosen)} of them for good?", as_json)
            count = await discard_entries(app.database, relay, chosen, by=operator_name(by), why=why)
        said = f"{counted(count, 'entry', 'entries')} of {relay} discarded"
        show({"relay": relay, "discarded": count}, as_json, said)

    run_async(act())


@commands.command("pause")
def pause(
    relay: RelayArgument,
    reason: Annotated[str, typer.Option(help="The reason, shown to other operators.")] = "paused by an operator",
    by: ByOption = None,
    as_json: JsonOption = False,
) -> None:
    """Pause a relay. Deliveries in progress finish; nothing is lost."""

    async def act() -> None:
        from payonce.engine.outbox import pause_relay

        async with open_app() as app:
            await pause_relay(app.database, relay, by=operator_name(by), reason=reason)
        show({"relay": relay, "paused": True}, as_json, f"{relay} is paused")

    run_async(act())


@commands.command("resume")
def resume(relay: RelayArgument, by: ByOption = None, as_json: JsonOption = False) -> None:
    """Resume a paused relay."""

    async def act() -> None:
        from payonce.engine.outbox import resume_relay

        async with open_app() as app:
            await resume_relay(app.database, app.notifier, relay, by=operator_name(by))
        show({"relay": relay, "paused": False}, as_json, f"{relay} is running")

    run_async(act())


async def _ask(app: "App", relay: str, what: str, question: str, as_json: bool) -> None:
    """Shows the first parked entries and asks for confirmation. Raises Invalid for an unknown relay."""
    from payonce.engine.outbox import parked_entries

    found = await parked_entries(app.database, relay, PAGE_DEFAULT)
    confirm(what, question, _table(f"{relay}: parked, the first of them", found), yes=False, as_json=as_json)


def _table(title: str, found: "Sequence[StoredEntry]") -> Any:
    rows = [
        (
            one["id"],
            one["topic"],
            one["parked_at"],
            one["tries"],
            one["last_error"],
            str(one["payload"])[:PAYLOAD_SHOWN],
        )
        for one in _described(found)
    ]
    columns = ("id", "topic", "parked", "tries", "last error", "payload")
    return table(title, columns, rows, right=("tries",))


def _described(found: "Sequence[StoredEntry]") -> list[dict[str, Any]]:
    """Entries, with secrets redacted."""
    from payonce.app.logging import without_secrets

    return [
        {
            "id": str(stored.message.id),
            "topic": stored.message.queue,
            "action": stored.message.action,
            "trace_id": stored.message.trace,
            "correlation_id": stored.message.correlation_id,
            "parked_at": stored.parked_at,
            "first_tried_at": stored.first_tried_at,
            "tries": stored.tries,
            "refusals": stored.refusals,
            "crashes": stored.crashes,
            "last_error": without_secrets(stored.last_error),
            "payload": without_secrets(stored.message.payload),
        }
        for stored in found
    ]
