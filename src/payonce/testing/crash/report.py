"""The result of an exploration: figures, and texts about points and violations."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from payonce.testing.crash.model import UNREACHED, Mode, Point, Result, Violation


class AblationResult(msgspec.Struct, frozen=True):
    """A removed safeguard, and the first point at which damage was found; None if there was none."""

    name: str
    at: str | None
    violation: Violation | None
    tried: int


@dataclass(frozen=True)
class Report:
    seed: int
    recordings: Sequence[Result]
    results: Sequence[Result]
    ablation_results: Sequence[AblationResult]
    planned: Sequence[Point]
    left_out: int
    """Known points left out of this exploration."""
    seconds: float

    @property
    def violations(self) -> list[tuple[str, Violation]]:
        """Violations with the name of their run."""
        runs = [*self.recordings, *self.results]
        return [(name_of(run), violation) for run in runs for violation in run.violations]

    @property
    def uncovered(self) -> list[Point]:
        """Planned points that were not reached."""
        struck = {run.point for run in self.results if all(each.kind != UNREACHED for each in run.violations)}
        return [point for point in self.planned if point not in struck]

    @property
    def sound(self) -> bool:
        missed = [each for each in self.ablation_results if each.at is None]
        return bool(self.results) and not (self.violations or self.uncovered or missed)

    def coverage(self) -> Mapping[str, Counter[Mode]]:
        """The number of points reached, by site and mode."""
        missing = set(self.uncovered)
        counts: dict[str, Counter[Mode]] = {}
        for point in sorted(self.planned, key=lambda point: point.label.site):
            counts.setdefault(point.label.site, Counter())[point.mode] += point not in missing
        return counts

    def figures(self) -> dict[str, Any]:
        return {
            "scenarios": len({point.scenario for point in self.planned}),
            "sites": len(self.coverage()),
            "modes": len({point.mode for point in self.planned}),
            "points": len(self.planned),
            "left_out": self.left_out,
            "uncovered": len(self.uncovered),
            "violations": len(self.violations),
            "ids_reused": sum(run.id_reused for run in self.results),
            "ablations": len(self.ablation_results),
            "ablations_caught": sum(each.at is not None for each in self.ablation_results),
            "seconds": round(self.seconds, 1),
            "seed": self.seed,
        }

    def summary(self) -> str:
        """All violations as text, for a failed assertion."""
        lines = [f"{name}: {violation.kind}: {violation.text}" for name, violation in self.violations]
        lines += [
            f"{each.name} was removed, and no damage was found" for each in self.ablation_results if each.at is None
        ]
        return "\n".join(lines) or "no violations"


def name_of(run: Result) -> str:
    return f"{run.scenario}, without a crash" if run.point is None else str(run.point)
