"""The person before the screen: answers what effects ask, lets the message that waited for it start over, and releases
the quarantine after a failover."""

from typing import Final
from uuid import UUID

from payonce.engine.database import Database
from payonce.engine.effects import Answer, answer_review, store
from payonce.engine.quarantine import blockers, open_quarantine, release
from payonce.engine.queue import Admin, Filter
from payonce.engine.transaction import RingingFeed, begin
from payonce.testing.crash.scenario import Scenario
from payonce.testing.crash.wire import AnswerReview

PERSON: Final = "the person"
IN_SYNC: Final = "synchronous standby, in sync when the primary died"
"""The reason that docs/failover.md names. It is true here: the cluster has no other standby."""


async def answer(scenario: Scenario, database: Database, feed: RingingFeed, decided: AnswerReview) -> bool:
    async with begin(database, feed) as tx:
        row = await tx.fetchrow(
            "select *, payonce.due_now() as now from payonce.effects where id = $1", decided.effect_id
        )
        shown, said = store.as_stored(row), Answer(decided.answer)
        await answer_review(
            tx, decided.effect_id, said, PERSON, "by the vendor's books", revision=decided.revision,
            outcome=decided.outcome, vendor_ref=decided.vendor_ref,
        )  # fmt: skip
        await scenario.answered(tx, shown, said)
    return True


async def redrive(admin: Admin, queue: str, message_id: UUID) -> bool:
    return await admin.redrive(queue, Filter(ids=(message_id,))) > 0


async def release_quarantine(database: Database, feed: RingingFeed) -> bool:
    """As reconciled as the vendors' statements allow; a vendor without one is accepted unreconciled."""
    async with begin(database, feed) as tx:
        quarantine = await open_quarantine(tx)
        if quarantine is None:
            return False
        accepted = IN_SYNC if await blockers(tx, quarantine) else None
        await release(tx, PERSON, revision=quarantine.revision, accept_unreconciled=accepted)
    return True
