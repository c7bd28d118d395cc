"""The demonstration `queue`: messages, each of which changes one row once or is parked with its reason."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from payonce.cli.demo.kit import Workload, run_workload, scratch_app, table, too_few_kills

if TYPE_CHECKING:
    from payonce import Reader, Settings
    from payonce.cli.demo.kit import App
    from payonce.examples.tally.model import Change, Outcome

MESSAGES: Final = 5_000


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
            "messages": outcome.requested,
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
        """Violations of the guarantee; empty if it was kept."""
        figures, spared = self.figures(), self.poison_rows - self.outcome.parked_rows
        found = []
        if figures["lost"]:
            found.append(f"{figures['lost']} messages are neither applied nor parked")
        if figures["doubled"]:
            found.append(f"{figures['doubled']} rows were changed more than once")
        found += too_few_kills(self.kills)
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


async def demonstrate(settings: "Settings", seed: int, size: int | None) -> Report:
    from payonce.examples.tally import CHANGES, store
    from payonce.examples.tally.model import POISON, seeded_changes

    messages = size or MESSAGES
    # A short run gets slower messages, so that ten workers can be killed during it.
    changes = list(seeded_changes(messages, seed, slowness=max(1, MESSAGES // messages)))

    async def done(read: "Reader") -> int:
        return messages - await store.unfinished(read)

    async with scratch_app(settings) as (app, addresses):
        await _put(app, changes)
        workload = Workload("tally.worker", [CHANGES.queue], CHANGES.lease_s, messages, done)
        disrupted = await run_workload(app, addresses, workload, seed)
        return Report(
            seed=seed,
            outcome=await store.outcome(app.read),
            poison_rows=frozenset(change.row_id for change in changes if change.fault in POISON),
            kills=disrupted.kills,
            stops=disrupted.stops,
            restarts=disrupted.restarts,
            seconds=disrupted.seconds,
            log_path=disrupted.log_path,
        )


async def _put(app: "App", changes: list["Change"]) -> None:
    """Creates rows and messages in one commit."""
    import msgspec

    from payonce import Message
    from payonce.examples.tally import CHANGES, store

    async with app.begin() as tx:
        await store.add_rows(tx, [change.row_id for change in changes])
        payloads = [msgspec.to_builtins(change) for change in changes]
        await tx.send_all([Message(queue=CHANGES.queue, payload=payload) for payload in payloads])
