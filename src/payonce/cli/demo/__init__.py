"""`demo`: work, three workers, and a hand that kills them; at the end everything is accounted for."""

from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol

import typer

from payonce.cli.demo import payouts, queue, transfers
from payonce.cli.errors import EXIT_FAILED, say_error
from payonce.cli.output import JsonOption, command_settings, loop_factory, note, run_async, show
from payonce.kit.outcomes import Invalid

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
    "queue": queue.demonstrate,
}


def demo(
    name: Annotated[str, typer.Argument(help=f"Which one; there are: {', '.join(DEMONSTRATIONS)}.")] = "transfers",
    seed: Annotated[int, typer.Option(help="The same seed draws the same faults and the same blows.")] = 1,
    size: Annotated[
        int | None, typer.Option("--size", "--messages", "--payouts", hidden=True, min=100, max=100_000)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Watch money survive killed workers and lying banks, on a throw-away database of the private PostgreSQL.

    transfers: 2,000 transfers between two simulated banks of which one call in five goes wrong, while three worker
    processes are killed (SIGKILL) and stopped again and again. At the end the banks' own books and ours are compared,
    to the last unit.

    payouts: 200 split payouts through four roles and a Cloud Tasks server, each a process of its own and killed again
    and again, while three in ten calls to the exchange go wrong and it is down for two minutes. At the end the books of
    exchange and chain say that everybody was paid once.

    queue: 5,000 messages; some ask for a retry, some hit a bug, some always fail, some kill their worker. At the end
    each is applied once or parked, with its reason.

    Example: payonce demo transfers --seed 7 --json
    """
    if name not in DEMONSTRATIONS:
        raise Invalid(f"there is no demonstration {name!r}; there are: {', '.join(DEMONSTRATIONS)}")
    report = run_async(DEMONSTRATIONS[name](command_settings(), seed, size), loop_factory())
    show(report.figures(), as_json, report.rendered())
    complaints = report.complaints()
    for sentence in complaints:
        say_error(sentence)
    if complaints:
        note(f"the workers' log is kept: {report.log_path}")
        raise typer.Exit(EXIT_FAILED)
    report.log_path.unlink(missing_ok=True)
