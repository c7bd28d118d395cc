"""The results of one run, in the format of `--json`, and the ratios, which are what counts."""

import statistics
from collections.abc import Callable, Sequence

import msgspec

from bench.peers import OUR_SYSTEMS, OURS


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One system's figures: medians over the rounds; None if not measured, or without a result."""

    backend: str
    system: str
    version: str
    drain_per_s: float | None
    enqueue_per_s: float | None
    bulk_per_s: float | None
    idle_p50_ms: float | None
    idle_p99_ms: float | None
    pickup_s: float | None
    rss_mb: float | None
    # payonce's is a policy, a peer's a default: without it the pick-up time means little.
    lease_s: float | None = None
    settings: dict[str, str] = {}


class TransactionalRow(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs per second when each writes one business row; `atomic` says whether it commits with the acknowledgement."""

    backend: str
    system: str
    atomic: bool
    per_s: float
    how: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    conditions: dict[str, str]
    rows: list[Row] = []
    transactional: list[TransactionalRow] = []
    scaling: dict[str, float | None] = {}
    ratios: dict[str, dict[str, float | None]] = {}
    # One sentence for each system that is not installed.
    skipped: list[str] = []
    # One text for each system that failed during the run, with its last output.
    errors: list[str] = []

    def to_json(self) -> str:
        return msgspec.json.format(msgspec.json.encode(self), indent=2).decode()


def ratios(rows: Sequence[Row], transactional: Sequence[TransactionalRow] = ()) -> dict[str, float | None]:
    """payonce's figure divided by the best peer's in the same run; for idle_p50 smaller is better."""
    return {
        "drain": ratio_to_best(rows, lambda row: row.drain_per_s, best=max),
        "bulk_enqueue": ratio_to_best(rows, lambda row: row.bulk_per_s, best=max),
        "idle_p50": ratio_to_best(rows, lambda row: row.idle_p50_ms, best=min),
        "transactional": transactional_ratio(transactional),
    }


def transactional_ratio(rows: Sequence[TransactionalRow]) -> float | None:
    """Among systems that commit the business row and the acknowledgement together."""
    ours = [row.per_s for row in rows if row.atomic and row.system == OURS]
    peers = [row.per_s for row in rows if row.atomic and row.system not in OUR_SYSTEMS]
    return round(ours[0] / max(peers), 3) if ours and peers else None


def ratio_to_best(
    rows: Sequence[Row], figure: Callable[[Row], float | None], best: Callable[[list[float]], float]
) -> float | None:
    ours = [value for row in rows if row.system == OURS and (value := figure(row)) is not None]
    peers = [value for row in rows if row.system not in OUR_SYSTEMS and (value := figure(row)) is not None]
    if not ours or not peers:
        return None
    return round(ours[0] / best(peers), 3)


def median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(statistics.median(known), 3) if known else None
