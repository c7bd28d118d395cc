"""`queues redrive` and `queues purge`: changes to many messages, after a preview."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from payonce.cli import redis_queues
from payonce.cli.arguments import (
    ByOption,
    QueueArgument,
    StateOption,
    described_amount,
    operator_name,
    parsed_id,
    parsed_moment,
)
from payonce.cli.confirmation import confirm
from payonce.cli.operations import follow
from payonce.cli.output import JsonOption, YesOption, note, open_app, run_async, show
from payonce.kit.outcomes import Invalid
from payonce.kit.words import counted

if TYPE_CHECKING:
    from payonce.app.process import App
    from payonce.engine.controls import Approval, Executed, Redrive
    from payonce.engine.messages.ports import Admin, Filter, Preview
    from payonce.engine.messages.transaction import Tx
    from payonce.kit.money import Amount

IdOption = Annotated[list[str] | None, typer.Option("--id", help="Only this message; repeatable.")]
ActionOption = Annotated[str | None, typer.Option(help="Only messages with this action.")]
CorrelationOption = Annotated[str | None, typer.Option(help="Only messages with this correlation id.")]
ErrorOption = Annotated[str | None, typer.Option(help="Only messages whose last error contains this text.")]
AfterOption = Annotated[str | None, typer.Option(help="Only messages parked (or due) at or after this time.")]
BeforeOption = Annotated[str | None, typer.Option(help="Only messages parked (or due) before this time.")]


def redrive(
    queue: QueueArgument,
    ids: IdOption = None,
    action: ActionOption = None,
    correlation_id: CorrelationOption = None,
    error_contains: ErrorOption = None,
    after: AfterOption = None,
    before: BeforeOption = None,
    why: Annotated[
        str, typer.Option(help="The reason, for the audit log and the approver.")
    ] = "redriven on the command line",
    by: ByOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Redrive parked messages: attempts, crashes and age start from zero. Without a filter, all of them.

    Above the threshold of an asset a second person must agree first (payonce approvals).

    Example: payonce queues redrive tally-changes --error-contains 'always fails' --after 2026-01-31T12:00:00Z
    """
    which = _filter(ids, action, correlation_id, error_contains, after, before)
    run_async(_redrive(queue, which, operator_name(by), why, yes, as_json))


def purge(
    queue: QueueArgument,
    state: StateOption = "parked",
    ids: IdOption = None,
    action: ActionOption = None,
    correlation_id: CorrelationOption = None,
    error_contains: ErrorOption = None,
    after: AfterOption = None,
    before: BeforeOption = None,
    by: ByOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Delete messages permanently; each leaves an entry in the job log. Without a filter, all of that state.

    Messages with open effects are kept: they are needed to resolve the effects.

    Example: payonce queues purge tally-changes --state parked --id 0199… --yes
    """
    from payonce.engine.messages.model import State
    from payonce.queues.operations import check_purged

    which = _filter(ids, action, correlation_id, error_contains, after, before)
    check_purged(State(state))
    run_async(_purge(queue, state, which, f"{operator_name(by)} on the command line", yes, as_json))


async def _redrive(queue: str, which: "Filter", by: str, why: str, yes: bool, as_json: bool) -> None:
    """Redrives exactly the previewed messages in one commit, or in batches if they are too many. Above the
    thresholds, a second person must agree first."""
    from payonce.engine.controls import redrive_request, submit
    from payonce.engine.messages.model import State

    async with open_app() as app:
        await redis_queues.refuse(app, queue)
        preview = await app.admin.preview(queue, State.PARKED, which)
        result: dict[str, Any] = {
            "queue": queue,
            "redriven": 0,
            "matching": preview.count,
            "amounts": [],
            "in_review": preview.in_review,
        }
        said, remarks = f"0 messages of {queue} redriven", _remarks(queue, preview)
        if preview.count > preview.unreadable:
            async with app.begin() as tx:
                asked = await redrive_request(tx, app.admin, queue, which)
                amounts, moved = await _amounts(tx, app.admin, asked)
            _ask("redrive", queue, "parked", asked.count, preview, [moved, *remarks], yes, as_json)
            async with app.begin() as tx:
                end = await submit(tx, app.actions["redrive"], asked, by, why)
            ended, said = await _ended(app, queue, end)
            result |= {"amounts": [described_amount(amount) for amount in amounts], **ended}
    for remark in remarks:
        note(remark)
    show(result, as_json, said)


def _remarks(queue: str, preview: "Preview") -> list[str]:
    """Remarks on messages that a redrive skips, or does not help."""
    remarks = []
    if preview.unreadable:
        remarks.append(f"{preview.unreadable:,} of them cannot be decoded and stay parked; they can only be purged")
    if preview.in_review:
        remarks.append(
            f"{preview.in_review:,} of them have effects in review, which a redrive does not resolve. Answer the "
            f"effects instead; each answer wakes its message: payonce effects list --state review --queue {queue}"
        )
    return remarks


async def _amounts(tx: "Tx", admin: "Admin", asked: "Redrive") -> "tuple[list[Amount], str]":
    """What the messages may move, as amounts and as a sentence."""
    from payonce.engine.controls import amounts_of, count_unknown_amounts
    from payonce.engine.messages.model import State

    if asked.in_batches:
        return [], "They are redriven in batches; their amounts are not totalled."
    ids = await admin.choose(asked.queue, State.PARKED, asked.which, asked.count, within=tx.connection)
    amounts, unknown = await amounts_of(tx, ids), await count_unknown_amounts(tx, ids)
    known = [str(amount) for amount in amounts]
    known += [f"unknown amounts of {unknown:,} of {asked.count:,}"] if unknown else []
    return amounts, f"They move up to {', and '.join(known) or 'nothing'}."


async def _ended(app: "App", queue: str, end: "Executed | Approval") -> tuple[dict[str, Any], str]:
    """The result and its sentence. Waits until a batch operation has ended."""
    from payonce.engine.controls import Executed

    if not isinstance(end, Executed):
        way_out = f"payonce approvals grant {end.id}"
        return {"approval": end.id}, f"nothing is redriven yet; a second person must run: {way_out}"
    if "operation" in end.result:
        operation = await follow(app, end.result["operation"])
        return {"redriven": operation.changed, "operation": operation.id, "status": operation.status}, operation.text
    redriven = end.result["redriven"]
    return {"redriven": redriven}, f"{counted(redriven, 'message', 'messages')} of {queue} redriven"


async def _purge(queue: str, state: str, which: "Filter", by: str, yes: bool, as_json: bool) -> None:
    from payonce.engine.messages import bulk
    from payonce.engine.messages.model import State

    async with open_app() as app:
        await redis_queues.refuse(app, queue)
        preview = await app.admin.preview(queue, State(state), which)
        kept = preview.with_open_effects
        why = f"{kept:,} of them are kept because they have open effects; see: payonce effects list"
        count, result = 0, {"queue": queue, "purged": 0, "matching": preview.count, "kept": kept}
        if preview.count > kept:
            _ask("purge", queue, state, preview.count, preview, [why] if kept else [], yes, as_json)
            if preview.count > bulk.BULK_MAX:
                async with app.begin() as tx:
                    begun = await bulk.start(
                        tx, bulk.Kind.PURGE, queue, State(state), which, preview.count, by, "purged on the command line"
                    )
                count = (await follow(app, begun.id)).changed
                result["operation"] = begun.id
            else:
                count = await app.admin.purge(queue, State(state), which, by)
    if kept:
        note(why)
    show({**result, "purged": count}, as_json, f"{counted(count, 'message', 'messages')} of {queue} purged")


def _ask(
    verb: str, queue: str, state: str, count: int, preview: "Preview", remarks: list[str], yes: bool, as_json: bool
) -> None:
    from payonce.cli.queues import message_table

    many = counted(count, f"{state} message", f"{state} messages")
    samples = [each for each in preview.samples if each.readable or verb == "purge"]
    shown = message_table(f"{queue}: {many} would be {verb}d, the first of them", samples)
    confirm(f"a {verb}", f"{verb} {many}?", shown, *remarks, yes=yes, as_json=as_json)


def _filter(
    ids: list[str] | None,
    action: str | None,
    correlation_id: str | None,
    error_contains: str | None,
    after: str | None,
    before: str | None,
) -> "Filter":
    from payonce.engine.messages.ports import Filter

    for option, text in (
        ("--action", action),
        ("--correlation-id", correlation_id),
        ("--error-contains", error_contains),
    ):
        if text is not None and (not text or "\x00" in text):
            raise Invalid(f"{option} is {text!r}; omit it to match everything")
    return Filter(
        ids=[parsed_id(text) for text in ids or ()],
        action=action,
        correlation_id=correlation_id,
        error_contains=error_contains,
        parked_after=None if after is None else parsed_moment(after, "--after"),
        parked_before=None if before is None else parsed_moment(before, "--before"),
    )
