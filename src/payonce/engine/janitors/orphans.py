"""Opens reviews for orphaned effects. Runs in the leader only, but would do no harm elsewhere."""

from typing import Final
from uuid import UUID

from payonce.engine.database.connections import Database
from payonce.engine.effects.model import State
from payonce.engine.effects.orphans import find_orphans, review_orphan
from payonce.engine.monitoring.metrics import ORPHANED_EFFECTS
from payonce.kit.log import get_logger

BATCH: Final = 100
BATCHES_MAX: Final = 50
"""Per tick; the next tick continues."""

log = get_logger(__name__)


async def review_orphans(database: Database, *, batch: int = BATCH) -> int:
    """Returns the number of reviews. Each has a transaction of its own, so that it does not wait long for a run, nor a
    run for it."""
    return sum([await _review_all(database, state, batch) for state in (State.INTENDED, State.UNKNOWN)])


async def _review_all(database: Database, state: State, batch: int) -> int:
    reviewed, after = 0, UUID(int=0)
    for _ in range(BATCHES_MAX):
        found = await find_orphans(database, state, after, batch)
        for effect_id in found:
            if await review_orphan(database, effect_id):
                reviewed += 1
                ORPHANED_EFFECTS.inc()
                log.warning("effect_orphaned", effect_id=str(effect_id))
        if len(found) < batch:
            break
        after = found[-1]
    return reviewed
