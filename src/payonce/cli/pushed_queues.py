"""`queues sync` and `queues tune`: operator actions on queues that a task service pushes."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from payonce.cli.arguments import ByOption, operator_name
from payonce.cli.output import JsonOption, open_app, run_async, show, table
from payonce.kit.outcomes import Invalid

if TYPE_CHECKING:
    from payonce.app.process import App
    from payonce.queues.cloudtasks.assembly import CloudTasks
    from payonce.queues.cloudtasks.pushed import PushedQueue


def sync(
    to: Annotated[str, typer.Option("--to", help="cloudtasks.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the differences.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Update the queues at the task service to match the policies: rate, concurrency, attempts, backoff.

    Example: payonce queues sync --to cloudtasks --dry-run
    """
    if to != "cloudtasks":
        raise Invalid(f"there is no task service {to[:40]!r}; there is: cloudtasks")

    async def act() -> None:
        from payonce.queues.cloudtasks.sync import differences, refuse_foreign
        from payonce.queues.cloudtasks.sync import sync as put_right

        async with open_app() as app:
            pushes = _pushes(app)
            queues = list(pushes.pushed.values())
            await refuse_foreign(app.database, pushes.service)
            found = await (differences if dry_run else put_right)(pushes.service, queues)
        rows = [
            (each.queue, each.field, "missing" if each.there is None else f"{each.there:g}", f"{each.here:g}")
            for each in found
        ]
        title = "Differences" if dry_run else "Updated"
        shown = table(title, ("queue", "field", "there", "here"), rows) if rows else "nothing differs"
        show({"changed": not dry_run, "differences": [asdict(each) for each in found]}, as_json, shown)

    run_async(act())


def tune(
    queue: Annotated[str | None, typer.Argument(metavar="QUEUE", help="Unset, every pushed queue.")] = None,
    vendor_rate: Annotated[
        float | None,
        typer.Option(
            help="Requests a second that the vendor of the queue allows.", show_default="what the service declares"
        ),
    ] = None,
    apply: Annotated[bool, typer.Option("--apply", help="Store the numbers in place of the policy's.")] = False,
    by: ByOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compute rate and concurrency from measured runs: 80 % of the vendor's rate, and 1.5 times the slots that runs at
    that rate occupy at their 95th percentile.

    The vendor's rate is the one that the queue's service declares, unless it is given.

    Example: payonce queues tune --apply
    """

    async def act() -> None:
        from payonce.queues.cloudtasks.tune import apply as keep
        from payonce.queues.cloudtasks.tune import measured_tuning

        async with open_app() as app:
            pushed = _pushes(app).pushed
            names = sorted(pushed)
            if queue is not None and queue not in names:
                raise Invalid(f"queue {queue[:60]!r} is not pushed; pushed are: {', '.join(names)}")
            rates = {name: _vendor_rate(pushed[name], vendor_rate) for name in names if queue in (None, name)}
            found = [await measured_tuning(app.database, name, rate) for name, rate in rates.items()]
            if apply:
                for each in found:
                    await keep(app.database, each, operator_name(by))
        rows = [
            (
                each.queue,
                each.runs,
                "not measured" if each.p95_s is None else f"{each.p95_s:.3f}",
                f"{each.rate:g}",
                each.concurrency,
            )
            for each in found
        ]
        columns = ("queue", "runs", "p95 s", "rate", "concurrency")
        shown = table("Kept" if apply else "Would be", columns, rows, right=columns[1:])
        after = "restart the processes, then run: payonce queues sync --to cloudtasks"
        show({"applied": apply, "queues": [asdict(each) for each in found]}, as_json, shown, after if apply else "")

    run_async(act())


def _vendor_rate(pushed: "PushedQueue", given: float | None) -> float:
    rate = pushed.target.vendor_per_s if given is None else given
    if rate is None:
        raise Invalid(f"the vendor's rate for queue {pushed.queue} is unknown; give it with --vendor-rate")
    return rate


def _pushes(app: "App") -> "CloudTasks":
    if app.backend.pushes is None:
        raise Invalid("no service here has a queue that a task service pushes; there is nothing to update")
    return app.backend.pushes
