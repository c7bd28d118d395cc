"""`demo`: messages, three workers, and a hand that kills them; at the end every message is accounted for."""

import asyncio
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from payonce.cli.crew import Crew, plan_blows
from payonce.cli.errors import EXIT_FAILED, say_error
from payonce.cli.output import JsonOption, command_settings, note, run_async, show, table
from payonce.kit.outcomes import Invalid

if TYPE_CHECKING:
    from payonce.app import Addresses, App
    from payonce.examples.tally.model import Change, Outcome
    from payonce.settings import Settings

MESSAGES: Final = 5_000
WORKERS: Final = 3
SLOTS: Final = 8
KILLS, KILLS_MIN, STOPS = 12, 10, 2
FIRST_BLOW, LAST_BLOW = 0.04, 0.8
"""Share of the work done at the first and last blow: between them there is work to disturb."""
SLEEP_LEASES: Final = 1.5
"""How long a stopped worker sleeps, in leases: long enough for others to take its messages."""
TICK_S: Final = 0.05
LIMIT_S: Final = 85.0
DEMONSTRATIONS: Final = ("queue",)


def demo(
    name: Annotated[str, typer.Argument(help="Which one; there is: queue.")] = "queue",
    seed: Annotated[int, typer.Option(help="The same seed draws the same faults and the same blows.")] = 1,
    messages: Annotated[int, typer.Option(hidden=True, min=100, max=100_000)] = MESSAGES,
    as_json: JsonOption = False,
) -> None:
    """Watch 5,000 messages survive killed workers, on a throw-away database of the private PostgreSQL.

    Three worker processes are killed (SIGKILL) and stopped again and again; some messages ask for a retry, some hit a
    bug, some always fail, some kill their worker. At the end each is applied once or parked, with its reason.

    Example: payonce demo queue --seed 7 --json
    """
    if name not in DEMONSTRATIONS:
        raise Invalid(f"there is no demonstration {name!r}; there is: {', '.join(DEMONSTRATIONS)}")
    report = run_async(_demonstrate(command_settings(), seed, messages))
    show(report.figures(), as_json, report.rendered())
    for sentence in report.complaints():
        say_error(sentence)
    if report.complaints():
        note(f"the workers' log is kept: {report.log_path}")
        raise typer.Exit(EXIT_FAILED)
    report.log_path.unlink(missing_ok=True)


@dataclass(frozen=True)
class Report:
    seed: int
    outcome: "Outcome"
    poison_rows: frozenset[int]
    kills: int
    stops: int
    restarts: int
    seconds: float
    log_path: Path

    def figures(self) -> dict[str, Any]:
        outcome = self.outcome
        return {
            "messages": outcome.asked,
            "applied": outcome.applied,
            "lost": outcome.lost + outcome.unfinished,
            "doubled": outcome.doubled,
            "parked": outcome.parked,
            "poison": len(self.poison_rows),
            "kills": self.kills,
            "stops": self.stops,
            "restarts": self.restarts,
            "retries": outcome.retries,
            "seconds": round(self.seconds, 1),
            "seed": self.seed,
        }

    def complaints(self) -> list[str]:
        """What went against the promise; empty when it was kept."""
        figures, spared = self.figures(), self.poison_rows - self.outcome.parked_rows
        found = []
        if figures["lost"]:
            found.append(f"{figures['lost']} messages are neither applied nor parked")
        if figures["doubled"]:
            found.append(f"{figures['doubled']} rows were changed more than once")
        if self.kills < KILLS_MIN:
            found.append(f"only {self.kills} workers were killed, {KILLS_MIN} are wanted; the work was over too soon")
        if spared:
            found.append(f"{len(spared)} poison messages were not parked, first of row {min(spared)}")
        return found

    def rendered(self) -> Any:
        meanings = {
            "messages": "put, one row each",
            "applied": "changed their row",
            "lost": "neither applied nor parked",
            "doubled": "rows changed more than once",
            "parked": "kept for a person, with the reason",
            "poison": "made to fail always or to kill their worker",
            "kills": "workers killed with SIGKILL in mid-work",
            "stops": "workers stopped until their leases were over",
            "restarts": "workers started again, the poison's victims included",
            "retries": "runs that ended in another try",
            "seconds": "from the first worker to the last message",
            "seed": "of the faults and the blows",
        }
        rows = [(name, figure, meanings[name]) for name, figure in self.figures().items()]
        return table("Every message accounted for", ("figure", "", "meaning"), rows, right=("",))


async def _demonstrate(settings: "Settings", seed: int, messages: int) -> Report:
    from payonce.app import App, migrate_database
    from payonce.cli.scratch import scratch_database
    from payonce.examples.tally.model import POISON, seeded_changes

    # A short run gets slower messages, so that there is time to kill ten workers in the midst of them.
    changes = list(seeded_changes(messages, seed, slowness=max(1, MESSAGES // messages)))
    async with scratch_database(settings) as addresses:
        await migrate_database(addresses)
        async with App.open(_pointed_at(settings, addresses)) as app:
            await _put(app, changes)
            started = time.monotonic()
            with (
                _log_file() as log_path,
                Crew(("run", "tally.worker"), _environment(addresses), log_path, WORKERS) as crew,
            ):
                outcome = await _disturb(app, crew, seed, messages)
                seconds = time.monotonic() - started
            return Report(
                seed=seed,
                outcome=outcome,
                poison_rows=frozenset(change.row_id for change in changes if change.fault in POISON),
                kills=crew.kills,
                stops=crew.stops,
                restarts=crew.restarts,
                seconds=seconds,
                log_path=log_path,
            )


async def _put(app: "App", changes: list["Change"]) -> None:
    """Rows and messages in one commit."""
    import msgspec

    from payonce.engine.model import Message
    from payonce.examples.tally import CHANGES, store

    async with app.begin() as tx:
        await store.add_rows(tx, [change.row_id for change in changes])
        payloads = [msgspec.to_builtins(change) for change in changes]
        await app.feed.put([Message(queue=CHANGES.queue, payload=payload) for payload in payloads], tx.connection)


async def _disturb(app: "App", crew: Crew, seed: int, messages: int) -> "Outcome":
    """Kills and stops workers by the plan, each in mid-work, until nothing is left to do."""
    from payonce.examples.tally import CHANGES, store

    chance = random.Random(seed)
    blows = plan_blows(KILLS, STOPS, FIRST_BLOW, LAST_BLOW, chance)
    deadline = time.monotonic() + LIMIT_S
    with _progress_bar(messages) as show_progress:
        while True:
            done = messages - await store.unfinished(app.read)
            show_progress(done, crew.kills)
            if done == messages or time.monotonic() > deadline:
                return await store.outcome(app.read)
            if blows and done >= blows[0][0] * messages:
                busy = {int(name.split("-")[-2]): held for name, held in (await store.busy_workers(app.read)).items()}
                # Who holds several is in mid-work; a message that runs alone is left to show its own fault.
                victims = sorted(pid for pid in crew.awake() if busy.get(pid, 0) > 1)
                if victims:
                    crew.strike(blows.pop(0)[1], chance.choice(victims), CHANGES.lease_s * SLEEP_LEASES)
            crew.revive()
            await asyncio.sleep(TICK_S)


@contextmanager
def _log_file() -> Iterator[Path]:
    """What the workers say; deleted when the demonstration is broken off, for then nobody asks."""
    handle, name = tempfile.mkstemp(prefix="payonce-demo-", suffix=".log")
    os.close(handle)
    path = Path(name)
    try:
        yield path
    except BaseException:
        path.unlink(missing_ok=True)
        raise


@contextmanager
def _progress_bar(total: int) -> Iterator[Any]:
    if not sys.stderr.isatty():
        yield lambda done, kills: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("0 workers killed", total=total)
        yield lambda done, kills: progress.update(task, completed=done, description=f"{kills} workers killed")


def _pointed_at(settings: "Settings", addresses: "Addresses") -> "Settings":
    from pydantic import SecretStr

    urls = {"database_url": SecretStr(addresses.service), "database_owner_url": SecretStr(addresses.owner)}
    return settings.model_copy(update=urls)


def _environment(addresses: "Addresses") -> dict[str, str]:
    ours = {
        "DATABASE_URL": addresses.service,
        "PAYONCE_SLOTS": str(SLOTS),
        "PAYONCE_POOL_SIZE": str(SLOTS),
        "PAYONCE_GRACE_S": "2",
        "PAYONCE_LOG": "json",
    }
    return {**{name: value for name, value in os.environ.items() if name != "DATABASE_OWNER_URL"}, **ours}
