"""`billing plans`: migrations of subscriptions from an older version of a plan to a newer one."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from payonce.cli.arguments import ByOption, LimitOption, described_amount, operator_name
from payonce.cli.confirmation import confirm
from payonce.cli.output import JsonOption, YesOption, run_async, show, table
from payonce.kit.outcomes import Invalid
from payonce.services.billing.cli.subscriptions import open_subscriptions_app

if TYPE_CHECKING:
    from payonce.services.billing.subscriptions.handlers.plan_migrations import Preview
    from payonce.services.billing.subscriptions.handlers.plan_moves import PlanMigration

HELP: Final = """Move subscriptions to a newer version of their plan.

Subscriptions keep an older version and its price until a migration moves them, each at its first renewal at least 14
days away (--notice-days). Every scheduled change is announced to merchants' webhooks
(subscription.plan_change_scheduled).

\b
Examples:
  payonce billing plans migrate basic-v1 --preview
  payonce billing plans migrate basic-v1 --notice-days 30 --why 'prices of 2027'
  payonce billing plans migrations
  payonce billing plans cancel-migration ID --why 'too early'
"""

commands = typer.Typer(help=HELP, no_args_is_help=True, rich_markup_mode=None)
WHY_MAX_LENGTH: Final = 2_000
NOTICE_DAYS: Final = 14
"""The service's default, repeated so that `--help` does not import the service."""


@commands.command("migrate")
def migrate(
    older: Annotated[str, typer.Argument(metavar="VERSION", help="Id of the older version, such as basic-v1.")],
    to: Annotated[str | None, typer.Option(help="Id of the newer version. Default: the one for sale.")] = None,
    why: Annotated[str | None, typer.Option(help="The reason, for merchants and the audit log.")] = None,
    notice_days: Annotated[
        int,
        typer.Option(
            min=0, max=366, help="Days between the announcement and the first renewal on the newer version, at least."
        ),
    ] = NOTICE_DAYS,
    preview: Annotated[bool, typer.Option("--preview", help="Show the effect and change nothing.")] = False,
    by: ByOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Move all subscriptions that would renew on an older version, each at its first renewal after the notice.

    Example: payonce billing plans migrate basic-v1 --why 'prices of 2027'
    """
    reason = None if preview else _reason(why)

    async def act() -> None:
        from payonce.services.billing.subscriptions.handlers import plan_migrations

        async with open_subscriptions_app() as app:
            with _refusals():
                found = await plan_migrations.preview(app.read, older, to, notice_days)
                if reason is None:
                    show({"preview": _described(found)}, as_json, _preview(found))
                    return
                confirm("a plan migration", "move them at their renewals?", _preview(found), yes=yes, as_json=as_json)
                async with app.begin() as tx:
                    ordered = await plan_migrations.start(
                        tx, found.older.id, found.newer.id, operator_name(by), reason, notice_days
                    )
        message = (
            f"migration {ordered.id} from {ordered.from_plan_id} to {ordered.to_plan_id} has started; `payonce "
            "billing plans migrations` shows its progress"
        )
        show({"migration": _migration(ordered)}, as_json, message)

    run_async(act())


@commands.command("migrations")
def migrations(limit: LimitOption = 50, as_json: JsonOption = False) -> None:
    """List all migrations, newest first."""

    async def act() -> None:
        from payonce.services.billing.subscriptions.handlers import plan_moves

        async with open_subscriptions_app() as app:
            found = [_migration(each) for each in await plan_moves.listed(app.read, limit)]
        columns = (
            "id",
            "from_plan_id",
            "to_plan_id",
            "state",
            "scheduled",
            "withdrawn",
            "notice_days",
            "requested_by",
            "created_at",
        )
        rows = [[each[column] for column in columns] for each in found]
        message: Any = table("Plan migrations", [column.replace("_", " ") for column in columns], rows)
        show({"migrations": found}, as_json, message if found else "no plan has been migrated yet")

    run_async(act())


@commands.command("cancel-migration")
def cancel_migration(
    migration: Annotated[str, typer.Argument(metavar="ID", help="An id from `payonce billing plans migrations`.")],
    why: Annotated[str, typer.Option(help="The reason, for the audit log.")],
    by: ByOption = None,
    as_json: JsonOption = False,
) -> None:
    """Cancel all pending changes of a migration. Subscriptions that already renewed on the newer version keep it.

    Example: payonce billing plans cancel-migration ID --why 'too early'
    """
    reason = _reason(why)

    async def act() -> None:
        from payonce.services.billing.subscriptions.handlers import plan_migrations

        async with open_subscriptions_app() as app:
            with _refusals():
                async with app.begin() as tx:
                    canceled = await plan_migrations.cancel(tx, migration, operator_name(by), reason)
        show({"migration": _migration(canceled)}, as_json, f"migration {canceled.id} is {canceled.state}")

    run_async(act())


def _reason(why: str | None) -> str:
    if why is None or not 1 <= len(why.strip()) <= WHY_MAX_LENGTH:
        raise Invalid(f"give a reason of 1 to {WHY_MAX_LENGTH} characters with --why; only --preview needs none")
    return why.strip()


@contextmanager
def _refusals() -> Iterator[None]:
    """Turns refusals of the service into Invalid, which prints one sentence and no traceback."""
    from payonce.services.billing.subscriptions.domain.refusals import Conflict, NotFound

    try:
        yield
    except (Conflict, NotFound) as refusal:
        raise Invalid(str(refusal)) from refusal


def _described(found: "Preview") -> dict[str, Any]:
    from payonce.services.billing.subscriptions.store.plans import terms_of

    return {
        "from_plan_id": found.older.id,
        "to_plan_id": found.newer.id,
        "notice_days": found.notice_days,
        "subscriptions": found.subscriptions,
        "by_state": dict(found.by_state),
        "canceling": found.canceling,
        "choosing": found.choosing,
        "price": described_amount(found.older.price),
        "new_price": described_amount(found.newer.price),
        "terms": terms_of(found.older, found.newer),
        "new_terms": terms_of(found.newer, found.older),
        "total": described_amount(found.before),
        "new_total": described_amount(found.after),
        "first_effective_at": found.first_at,
        "last_effective_at": found.last_at,
    }


def _preview(found: "Preview") -> Any:
    states = ", ".join(f"{count} {state}" for state, count in sorted(found.by_state.items())) or "none"
    rows: list[list[object]] = [
        ["subscriptions", f"{found.subscriptions} ({states})"],
        ["moved only if they reconsider", f"{found.canceling} canceled, {found.choosing} changing to another plan"],
        ["price", f"{found.older.price} to {found.newer.price}"],
        *_changed_terms(found),
        ["notice", f"{found.notice_days} days"],
        ["total for one period", f"{found.before} to {found.after}"],
        ["effective from", f"{found.first_at or 'nothing renews'} to {found.last_at or 'nothing renews'}"],
    ]
    return table(f"From {found.older.id} to {found.newer.id}", ["what", "how much"], rows)


def _changed_terms(found: "Preview") -> Iterator[list[object]]:
    """Every differing term beside the price; the billing interval in any case."""
    from payonce.services.billing.subscriptions.store.plans import terms_of

    older, newer = terms_of(found.older, found.newer), terms_of(found.newer, found.older)
    for what, name in (("billed every", "interval"), ("limits reset every", "allowance_interval")):
        before, after = [f"{each[f'{name}_count']} {each[name]}" for each in (older, newer)]
        yield [what, before if before == after else f"{before} to {after}"]
    for feature in sorted({*older["features"], *newer["features"]}):
        before, after = [_limit(each["features"], feature) for each in (older, newer)]
        yield [f"limit of {feature}", f"{before} to {after}"]


def _limit(features: dict[str, Any], feature: str) -> str:
    if feature not in features:
        return "not included"
    return "none" if features[feature] is None else str(features[feature])


def _migration(migration: "PlanMigration") -> dict[str, Any]:
    return {
        "id": migration.id,
        "from_plan_id": migration.from_plan_id,
        "to_plan_id": migration.to_plan_id,
        "state": migration.state.value,
        "note": migration.note,
        "requested_by": migration.requested_by,
        "notice_days": migration.notice_days,
        "scheduled": migration.scheduled,
        "withdrawn": migration.withdrawn,
        "created_at": migration.created_at,
    }
