"""`demo`: work, three workers, and a hand that kills them; at the end everything is accounted for."""

from collections.abc import Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol

import typer

from payonce.cli.demo import queue, transfers
from payonce.cli.errors import EXIT_FAILED, say_error
from payonce.cli.output import JsonOption, command_settings, loop_factory, note, run_async, show
from payonce.kit.outcomes import Invalid
from payonce.services.billing.demo import run
from payonce.services.payouts.demo import run as payouts

if TYPE_CHECKING:
    from payonce.settings import Settings


class Report(Protocol):
    """What a demonstration hands back."""

    @property
    def log_path(self) -> Path: ...

    def figures(self) -> Mapping[str, Any]: ...

    def complaints(self) -> list[str]:
        """What went against the promise; empty when it was kept."""
        ...

    def rendered(self) -> Any: ...


class Demonstration(Protocol):
    def __call__(self, settings: "Settings", seed: int, size: int | None) -> Coroutine[Any, Any, Report]: ...


DEMONSTRATIONS: Final[dict[str, Demonstration]] = {
    "transfers": transfers.demonstrate,
    "payouts": payouts.demonstrate,
    "billing": run.demonstrate,
    "queue": queue.demonstrate,
}


def demo(
    name: Annotated[str, typer.Argument(help=f"Which one; there are: {', '.join(DEMONSTRATIONS)}.")] = "transfers",
    seed: Annotated[int, typer.Option(help="The same seed draws the same faults and the same blows.")] = 1,
    size: Annotated[
        int | None, typer.Option("--size", "--messages", "--payouts", hidden=True, min=100, max=100_000)
    ] = None,
    customers: Annotated[int | None, typer.Option(help="Of billing: how many.", min=1, max=2_000)] = None,
    months: Annotated[int | None, typer.Option(help="Of billing: how long each lives.", min=3, max=30)] = None,
    as_json: JsonOption = False,
) -> None:
    """Watch money survive killed workers and lying banks, on a throw-away database of the private PostgreSQL.

    transfers: 2,000 transfers between two simulated banks of which one call in five goes wrong, while three worker
    processes are killed (SIGKILL) and stopped again and again. At the end the banks' own books and ours are compared,
    to the last unit.

    payouts: 200 split payouts through four roles and a Cloud Tasks server, each a process of its own and killed again
    and again, while three in ten calls to the exchange go wrong and it is down for two minutes, by a moved clock. At
    the end the books of exchange and chain say that everybody was paid once. It takes a minute or two, on a busy
    machine more; if for two minutes no payout comes to its end, it is over, and what is missing counts as lost.

    billing: 500 customers over two years, each by a test clock of their own: they subscribe, try, change, pause and
    cancel, and cards are declined for a while or for good, while 15 of 100 calls to the gateway go wrong and both
    services are killed again and again. At the end the gateway's books and plain calendar arithmetic say that every
    period was invoiced once and paid once. It takes minutes; --customers 20 --months 3 shows the same sooner.

    queue: 5,000 messages; some ask for a retry, some hit a bug, some always fail, some kill their worker. At the end
    each is applied once or parked, with its reason.

    How far it is, stderr says. The exit code is 0 when the promise was kept; else what was broken is named, and the
    log of the processes is kept.

    Example: payonce demo payouts --seed 7 --json
    """
    if name not in DEMONSTRATIONS:
        raise Invalid(f"there is no demonstration {name!r}; there are: {', '.join(DEMONSTRATIONS)}")
    if name != "billing" and (customers, months) != (None, None):
        raise Invalid("--customers and --months are of the demonstration billing; leave them out")
    demonstrate = DEMONSTRATIONS[name] if months is None else partial(run.demonstrate, months=months)
    report = run_async(demonstrate(command_settings(), seed, size if customers is None else customers), loop_factory())
    show(report.figures(), as_json, report.rendered())
    complaints = report.complaints()
    for sentence in complaints:
        say_error(sentence)
    if complaints:
        note(f"the workers' log is kept: {report.log_path}")
        raise typer.Exit(EXIT_FAILED)
    report.log_path.unlink(missing_ok=True)
