"""`webhooks deliveries` and `webhooks replay`: inspect deliveries, and repeat them."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final
from uuid import UUID

import typer

from payonce.cli.arguments import ByOption, LimitOption, operator_name, parsed_moment
from payonce.cli.confirmation import confirm
from payonce.cli.output import JsonOption, YesOption, open_app, run_async, show, table
from payonce.cli.webhooks.endpoints import parsed_endpoint, parsed_state
from payonce.kit.outcomes import Invalid
from payonce.kit.words import counted

if TYPE_CHECKING:
    from payonce.app.process import App
    from payonce.engine.webhooks import Delivery, Range

LIST: Final = "payonce webhooks deliveries list"

commands = typer.Typer(help="Inspect the delivery of events to endpoints.", no_args_is_help=True, rich_markup_mode=None)

DeliveryArgument = Annotated[str, typer.Argument(metavar="DELIVERY", help=f"Its id; `{LIST}` shows it.")]
SinceOption = Annotated[str | None, typer.Option(help="Only events announced at or after this time.")]
UntilOption = Annotated[str | None, typer.Option(help="Only events announced before this time.")]
TypeOption = Annotated[str | None, typer.Option("--type", help="Only events of this type.")]


@commands.command("list")
def list_deliveries(
    endpoint: Annotated[str | None, typer.Option(help="Only deliveries to this endpoint.")] = None,
    event: Annotated[str | None, typer.Option(help="Only deliveries of this event.")] = None,
    event_type: TypeOption = None,
    state: Annotated[str | None, typer.Option(help="pending, delivered, failed or skipped.")] = None,
    since: SinceOption = None,
    until: UntilOption = None,
    limit: LimitOption = 50,
    before: Annotated[str | None, typer.Option(help="Continue after this delivery, for the next page.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List deliveries, newest first.

    Example: payonce webhooks deliveries list --endpoint 0199… --state failed
    """
    endpoint_id = None if endpoint is None else parsed_endpoint(endpoint)
    behind = None if before is None else parsed_delivery(before)
    first, last = _moment(since, "--since"), _moment(until, "--until")

    async def act() -> None:
        from payonce.engine.webhooks import DeliveryState, deliveries

        wanted = None if state is None else parsed_state(state, DeliveryState, "a delivery")
        async with open_app() as app:
            found = await deliveries(
                app.read,
                endpoint_id=endpoint_id,
                event_id=event,
                event_type=event_type,
                state=wanted,
                since=first,
                until=last,
                before=behind,
                limit=limit,
            )
        following = str(found[-1].id) if len(found) == limit else None
        result = {"deliveries": [described(each) for each in found], "next_before": following}
        show(result, as_json, _table(found) if found else "no delivery matches")

    run_async(act())


@commands.command("show")
def show_delivery(delivery: DeliveryArgument, as_json: JsonOption = False) -> None:
    """Show a delivery with its attempts and the body."""
    delivery_id = parsed_delivery(delivery)

    async def act() -> None:
        from payonce.engine.webhooks import attempts, event_body
        from payonce.engine.webhooks import delivery as found_by
        from payonce.kit.redact import redact

        async with open_app() as app:
            found = await found_by(app.read, delivery_id)
            tried = await attempts(app.read, delivery_id)
            sent = (await event_body(app.read, found.event_id)).decode()
            body = redact(sent, max_chars=len(sent))
        result = {"delivery": described(found), "attempts": [asdict(each) for each in tried], "body": body}
        rows = [(each.number, each.at, each.status, each.latency_ms, each.error, each.excerpt) for each in tried]
        columns = ("attempt", "at", "status", "ms", "error", "answer")
        attempted = table("Attempts", columns, rows, right=("attempt", "status", "ms"))
        show(result, as_json, _table([found]), attempted, _literal(body))

    run_async(act())


def replay(
    delivery: Annotated[str | None, typer.Argument(metavar="DELIVERY", help="A delivery in any state.")] = None,
    endpoint: Annotated[
        str | None, typer.Option(help="Instead of one delivery: the events that this endpoint missed.")
    ] = None,
    since: SinceOption = None,
    until: UntilOption = None,
    event_type: TypeOption = None,
    states: Annotated[
        list[str] | None, typer.Option("--state", help="failed, skipped or delivered; unset, failed and skipped.")
    ] = None,
    why: Annotated[str, typer.Option(help="For the audit log.")] = "replayed on the command line",
    by: ByOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Send events again under their original ids: one delivery, or what an endpoint missed since a time.

    Example: payonce webhooks replay --endpoint 0199… --since 2026-01-31T12:00:00Z --why 'receiver outage'
    """
    if (delivery is None) == (endpoint is None):
        raise Invalid("nothing is selected; give one DELIVERY, or --endpoint with --since")
    if delivery is not None:
        if any(value is not None for value in (since, until, event_type, states)):
            raise Invalid("--since, --until, --type and --state select among an endpoint's deliveries; give --endpoint")
        run_async(_replay_one(parsed_delivery(delivery), operator_name(by), why, as_json))
        return
    first = _moment(since, "--since")
    if first is None:
        raise Invalid("--since is missing; give a time such as --since 2026-01-31T12:00:00Z")
    endpoint_id = parsed_endpoint(endpoint or "")
    run_async(
        _replay_range(
            endpoint_id, first, _moment(until, "--until"), event_type, states, operator_name(by), why, yes, as_json
        )
    )


async def _replay_one(delivery_id: UUID, by: str, why: str, as_json: bool) -> None:
    from payonce.engine.webhooks import replay as replay_one

    async with open_app() as app, app.begin() as tx:
        made = await replay_one(tx, delivery_id, by=by, why=why)
    show({"delivery": str(made), "replayed": 1}, as_json, f"queued as delivery {made}")


async def _replay_range(
    endpoint_id: UUID,
    since: datetime,
    until: datetime | None,
    event_type: str | None,
    states: list[str] | None,
    by: str,
    why: str,
    yes: bool,
    as_json: bool,
) -> None:
    from payonce.engine.webhooks import DeliveryState, Range, count_range
    from payonce.engine.webhooks.replays import MISSED

    wanted = MISSED if not states else tuple(parsed_state(each, DeliveryState, "a delivery") for each in states)
    async with open_app() as app:
        end = until or await app.read.fetchval("select payonce.due_now()")
        which = Range(endpoint_id, since, end, wanted, event_type)
        count = await count_range(app.read, which)
        if count:
            confirm("a replay of many events", f"send {count:,} events again?", yes=yes, as_json=as_json)
        replayed = await _replay_batches(app, which, by, why) if count else 0
    result = {"endpoint": str(endpoint_id), "matching": count, "replayed": replayed}
    show(result, as_json, f"queued again: {counted(replayed, 'event', 'events')}")


async def _replay_batches(app: "App", which: "Range", by: str, why: str) -> int:
    from payonce.engine.webhooks import replay_range

    total, after = 0, None
    while True:
        async with app.begin() as tx:
            done = await replay_range(tx, which, by=by, why=why, after=after)
        total, after = total + done.count, done.last
        if after is None:
            return total


def parsed_delivery(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise Invalid(f"{text[:60]!r} is not the id of a delivery; copy one from `{LIST}`") from None


def described(found: "Delivery") -> dict[str, Any]:
    fields = asdict(found)
    del fields["url"]
    return {**fields, "place": found.origin}


def _moment(text: str | None, option: str) -> datetime | None:
    return None if text is None else parsed_moment(text, option)


def _literal(text: str) -> Any:
    from rich.text import Text

    return Text(text)


def _table(found: "Sequence[Delivery]") -> Any:
    columns = ("id", "event", "type", "place", "state", "attempts", "status", "announced", "ended", "reason")
    rows = [
        (
            each.id,
            each.event_id,
            each.type,
            each.origin,
            each.state,
            each.attempts,
            each.last_status,
            each.created_at,
            each.ended_at,
            each.reason,
        )
        for each in found
    ]
    return table("Deliveries", columns, rows, right=("attempts", "status"))
