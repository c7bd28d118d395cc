"""Missing effects: effects that we performed and that the vendor's statement should show, but does not."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

from payonce.engine.effects.adopt import contradict
from payonce.engine.effects.model import Cause, State
from payonce.engine.effects.store import as_stored
from payonce.engine.messages.transaction import Reader, Tx
from payonce.engine.reconcile.runs import Run
from payonce.engine.reconcile.source import StatementSource
from payonce.engine.reconcile.suspense import Direction, Subject, hold_in_suspense
from payonce.kit.money import Amount, Asset

SKEW_S: Final = 300.0
"""A vendor's clock may be behind ours: an effect from the first minutes of the covered period may be on the page
before."""


async def find_missing(
    read: Reader, source: StatementSource, run: Run, covered_since: datetime, limit: int
) -> Sequence[UUID]:
    """Effects known to have happened in the run's period, less the vendor's lag, that no line explains and that are not
    in suspense. Effects begun before the covered period may be on a page that was never requested."""
    rows = await read.fetch(
        """
        select distinct e.id
        from payonce.effect_attempts a join payonce.effects e on e.id = a.effect_id
        where a.event in ('performed', 'found', 'answered')
          and a.created_at >= $2 and a.created_at < $3::timestamptz - make_interval(secs => $4::float8)
          and e.kind = any($1::text[]) and e.state = 'performed' and e.amount_minor > 0
          and e.created_at >= $5::timestamptz + make_interval(secs => $6::float8)
          and not exists (select from payonce.statement_lines l where l.effect_id = e.id)
          and not exists (
            select from payonce.unmatched u
            where u.effect_id = e.id and u.direction = 'ours' and u.state in ('open', 'written_off'))
        order by e.id limit $7
        """,
        list(source.kinds),
        run.since,
        run.until,
        source.lag_s,
        covered_since,
        SKEW_S,
        limit,
    )
    return [row["id"] for row in rows]


async def put_into_suspense(tx: Tx, source: StatementSource, effect_id: UUID, by: str) -> Counter[str]:
    """Puts an effect into suspense and opens a review: our ledger says that the money moved, the vendor says that it
    did not."""
    row = await tx.fetchrow(
        """
        select e.*, payonce.due_now() as now,
            exists (select from payonce.statement_lines l where l.effect_id = e.id) as shown,
            (select max(created_at) from payonce.effect_attempts a
             where a.effect_id = e.id and event in ('performed', 'found', 'answered')) as happened_at
        from payonce.effects e where id = $1 for update of e
        """,
        effect_id,
    )
    stored = as_stored(row)
    if stored.state is not State.PERFORMED or row["shown"]:
        return Counter()
    amount = Amount(int(row["amount_minor"]), Asset(row["asset"], row["exponent"]))
    reference = f"{stored.key}:{stored.generation}"
    subject = Subject(source.vendor, source.mirror, stored.kind, None, reference, effect_id, row["happened_at"])
    # The handler moved the mirror account; the vendor's balance did not move.
    await hold_in_suspense(tx, subject, Direction.OURS, -source.kinds[stored.kind].signed(amount), by)
    why = f"the statement of {source.vendor} does not show it"
    await contradict(tx.connection, stored, why, Cause.NOT_ON_STATEMENT)
    return Counter(missing=1)
