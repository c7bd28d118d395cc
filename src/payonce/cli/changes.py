"""`queues redrive` and `queues purge`: changes to many messages at once, with a preview first."""

import getpass
import os
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from payonce.cli.errors import EXIT_FAILED
from payonce.cli.output import JsonOption, YesOption, note, opened, run_async, show
from payonce.cli.parsing import QueueArgument, StateOption, parsed_id, parsed_moment
from payonce.kit.outcomes import Invalid

if TYPE_CHECKING:
    from payonce.app import App
    from payonce.engine.queue import Filter

IdOption = Annotated[list[str] | None, typer.Option("--id", help="Only this message; may be given several times.")]
ActionOption = Annotated[str | None, typer.Option(help="Only messages with this action.")]
CorrelationOption = Annotated[str | None, typer.Option(help="Only messages with this correlation id.")]
ErrorOption = Annotated[str | None, typer.Option(help="Only messages whose last error contains this text.")]
AfterOption = Annotated[str | None, typer.Option(help="Only those parked (or due) at or after this time.")]
BeforeOption = Annotated[str | None, typer.Option(help="Only those parked (or due) before this time.")]


def redrive(
    queue: QueueArgument,
    ids: IdOption = None,
    action: ActionOption = None,
    correlation_id: CorrelationOption = None,
    error_contains: ErrorOption = None,
    after: AfterOption = None,
    before: BeforeOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Let parked messages start over: attempts, crashes and age from zero. Without a filter: all of them.

    Example: payonce queues redrive tally-changes --error-contains 'always fails' --after 2026-01-31T12:00:00Z
    """
    which = _filter(ids, action, correlation_id, error_contains, after, before)
    run_async(_change("redrive", queue, "parked", which, yes, as_json, lambda app: app.admin.redrive(queue, which)))


def purge(
    queue: QueueArgument,
    state: StateOption = "parked",
    ids: IdOption = None,
    action: ActionOption = None,
    correlation_id: CorrelationOption = None,
    error_contains: ErrorOption = None,
    after: AfterOption = None,
    before: BeforeOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Delete messages for good; the job log keeps a line of each. Without a filter: all of that state.

    Example: payonce queues purge tally-changes --state parked --id 0199… --yes
    """
    from payonce.engine.model import State

    which = _filter(ids, action, correlation_id, error_contains, after, before)
    by = f"{user_name()} on the command line"
    if State(state) is State.LEASED:
        raise Invalid("messages that are being worked on cannot be purged; pause the queue and let them end")
    change = lambda app: app.admin.purge(queue, State(state), which, by)  # noqa: E731 - the one word that differs
    run_async(_change("purge", queue, state, which, yes, as_json, change))


async def _change(
    verb: str,
    queue: str,
    state: str,
    which: "Filter",
    yes: bool,
    as_json: bool,
    change: "Callable[[App], Awaitable[int]]",
) -> None:
    from payonce.engine.model import State

    if not yes and (as_json or not sys.stdin.isatty()):
        raise Invalid(f"a {verb} asks for confirmation, and here nobody can be asked; add --yes")
    async with opened() as app:
        preview = await app.admin.preview(queue, State(state), which)
        if preview.count and not yes:
            _ask(verb, queue, state, preview)
        count = await change(app) if preview.count else 0
    done = {"redrive": "redriven", "purge": "purged"}[verb]
    show({"queue": queue, done: count, "matching": preview.count}, as_json, f"{count:,} messages of {queue} {done}")


def _ask(verb: str, queue: str, state: str, preview: Any) -> None:
    from payonce.cli.output import people
    from payonce.cli.queues import message_table

    shown = f"{queue}: {preview.count:,} {state} messages would be {verb}d, the first of them"
    people().print(message_table(shown, preview.samples))
    if not typer.confirm(f"{verb} {preview.count:,} messages?"):
        note("nothing was changed")
        raise typer.Exit(EXIT_FAILED)


def _filter(
    ids: list[str] | None,
    action: str | None,
    correlation_id: str | None,
    error_contains: str | None,
    after: str | None,
    before: str | None,
) -> "Filter":
    from payonce.engine.queue import Filter

    for option, text in (
        ("--action", action),
        ("--correlation-id", correlation_id),
        ("--error-contains", error_contains),
    ):
        if text is not None and (not text or "\x00" in text):
            raise Invalid(f"{option} is {text!r}; leave it out to match everything")
    return Filter(
        ids=[parsed_id(text) for text in ids or ()],
        action=action,
        correlation_id=correlation_id,
        error_contains=error_contains,
        parked_after=None if after is None else parsed_moment(after, "--after"),
        parked_before=None if before is None else parsed_moment(before, "--before"),
    )


def user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # An account without a name, as containers have them.
        return f"user {os.getuid()}"
