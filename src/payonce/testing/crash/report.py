"""What an exploration came to: figures for machines, and for people what was struck where and what went wrong."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from payonce.testing.crash.model import UNREACHED, Mode, Point, Result, Violation


class AblationResult(msgspec.Struct, frozen=True):
    """A safeguard taken out, and the first point at which it was missed; None when it was not."""

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
    """Points that are known, and were not to be struck this time."""
    seconds: float

    @property
    def violations(self) -> list[tuple[str, Violation]]:
        """With the name of the run in which each was found."""
        runs = [*self.recordings, *self.results]
        return [(name_of(run), violation) for run in runs for violation in run.violations]

    @property
    def uncovered(self) -> list[Point]:
        """Points that were planned and not struck."""
        struck = {run.point for run in self.results if all(each.kind != UNREACHED for each in run.violations)}
        return [point for point in self.planned if point not in struck]

    @property
    def sound(self) -> bool:
        missed = [each for each in self.ablation_results if each.at is None]
        return bool(self.results) and not (self.violations or self.uncovered or missed)

    def coverage(self) -> Mapping[str, Counter[Mode]]:
        """By site, how many points were struck in each mode."""
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
        """For the message of a failed assertion."""
        lines = [f"{name}: {violation.kind}: {violation.text}" for name, violation in self.violations]
        lines += [
            f"{each.name} was taken out, and nothing was missed" for each in self.ablation_results if each.at is None
        ]
        return "\n".join(lines) or "all is well"


def name_of(run: Result) -> str:
    return f"{run.scenario}, without a crash" if run.point is None else str(run.point)
