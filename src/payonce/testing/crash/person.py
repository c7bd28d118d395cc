"""The operator: answers reviews of effects, redrives parked messages, and releases the quarantine after a failover."""

from typing import Final
from uuid import UUID

from payonce.engine.controls import Executed, ReviewAnswer, answer_review_action, submit
from payonce.engine.controls.quarantine import blockers, open_quarantine, release
from payonce.engine.database.connections import Database
from payonce.engine.effects import Answer, store
from payonce.engine.messages.ports import Admin, Filter
from payonce.engine.messages.transaction import NotifyingFeed, begin
from payonce.testing.crash.scenario import Scenario
from payonce.testing.crash.wire import AnswerReview

PERSON: Final = "the person"
BY_THE_BOOKS: Final = "by the vendor's books"
IN_SYNC: Final = "synchronous standby, in sync when the primary died"
"""The reason that docs/failover.md names. It is true here: the cluster has no other standby."""


async def answer(
    scenario: Scenario, database: Database, feed: NotifyingFeed, admin: Admin, decided: AnswerReview
) -> bool:
    """Answers a review by the same action as console, command line and API, which also wakes the message."""
    async with begin(database, feed) as tx:
        row = await tx.fetchrow(
            "select *, payonce.due_now() as now from payonce.effects where id = $1", decided.effect_id
        )
        shown, chosen = store.as_stored(row), Answer(decided.answer)
        given = ReviewAnswer(
            decided.effect_id, decided.revision, chosen, BY_THE_BOOKS, decided.outcome, decided.vendor_ref
        )
        end = await submit(tx, answer_review_action(admin), given, PERSON, BY_THE_BOOKS)
        assert isinstance(end, Executed), "a scenario has no thresholds"
        await scenario.answered(tx, shown, chosen)
    return True


async def redrive(admin: Admin, queue: str, message_id: UUID) -> bool:
    return await admin.redrive(queue, Filter(ids=(message_id,))) > 0


async def release_quarantine(database: Database, feed: NotifyingFeed) -> bool:
    """Releases an open quarantine, accepting vendors without statements as unreconciled. Returns False if there is
    none."""
    async with begin(database, feed) as tx:
        quarantine = await open_quarantine(tx)
        if quarantine is None:
            return False
        accepted = IN_SYNC if await blockers(tx, quarantine) else None
        await release(tx, PERSON, revision=quarantine.revision, accept_unreconciled=accepted)
    return True
