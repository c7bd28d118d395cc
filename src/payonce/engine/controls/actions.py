"""Actions that may need a second person: answering a review, redriving many messages, writing off money, and relaxing a
threshold."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

import msgspec

from payonce.engine.controls.approvals import Action, Assessment, Link
from payonce.engine.controls.thresholds import locked_threshold, remove_threshold, set_threshold, thresholds
from payonce.engine.effects.review import Answer, answer_review
from payonce.engine.effects.wakeup import wake_message
from payonce.engine.messages import bulk
from payonce.engine.messages.fingerprint import fingerprint
from payonce.engine.messages.model import State
from payonce.engine.messages.ports import Admin, Filter
from payonce.engine.messages.transaction import Reader, Tx
from payonce.engine.reconcile.suspense import describe, item_of, write_off
from payonce.kit.money import Amount, Asset
from payonce.kit.outcomes import Invalid, Stale

IN_BATCHES: Final = " in batches"
"""Ends the subject of a redrive of more messages than one transaction changes; otherwise a fingerprint does."""


class ReviewAnswer(msgspec.Struct, frozen=True):
    """A person's answer to an effect as shown at `revision`."""

    effect_id: UUID
    revision: int
    answer: Answer
    note: str
    outcome: Any = None
    vendor_ref: str | None = None


class Selection(msgspec.Struct, frozen=True):
    """The messages of a queue that matched when they were shown: their count and fingerprint. For parked messages the
    filter ends at that moment, so messages parked later are not included."""

    queue: str
    which: Filter
    count: int
    fingerprint: str
    in_batches: bool = False
    """More messages than one transaction changes: an operation (payonce.engine.messages.bulk) processes them. Only the
    filter identifies them then, and some matches may have moved on meanwhile."""


class Redrive(Selection, frozen=True):
    """The selected messages start over."""


class WriteOff(msgspec.Struct, frozen=True):
    """An item in suspense and the loss or gain account it is written off to. The amount of an item never changes."""

    item_id: UUID
    account: str
    note: str


class ThresholdChange(msgspec.Struct, frozen=True):
    """A threshold as it was at the time of the request, and as requested. Amounts are in minor units; None means no
    threshold."""

    asset: str
    exponent: int
    was_minor: str | None
    above_minor: str | None


def answer_review_action(_: Admin) -> Action[ReviewAnswer]:
    async def execute(tx: Tx, request: ReviewAnswer, by: str) -> dict[str, Any]:
        answered = await answer_review(
            tx,
            request.effect_id,
            request.answer,
            by,
            request.note,
            revision=request.revision,
            outcome=request.outcome,
            vendor_ref=request.vendor_ref,
        )
        # In the same commit, a message that is parked or waits for its next attempt continues with the answer.
        if (woken := await wake_message(tx.connection, answered.message_id)) is not None:
            tx.sent_to.add(woken)
        lives = "select exists (select from payonce.live_messages where id = $1)"
        return {
            "effect": answered.effect_id,
            "state": answered.state,
            "message": answered.message_id,
            "redriven": woken is not None,
            "gone": not await tx.fetchval(lives, answered.message_id),
        }

    return Action("answer review", ReviewAnswer, _assess_answer, execute, _effect)


def _effect(subject: str) -> Link:
    return Link("The effect", f"/effects/{subject}")


def describe_consequence(answered: Mapping[str, Any]) -> str:
    """What happens to the message of an answered effect, as half a sentence for people."""
    if answered["redriven"]:
        return "its message continues"
    if answered["gone"]:
        return "its message is gone, and nothing continues it; put a message, or see: payonce audit run"
    return "its message is due or running, and continues by itself"


def redrive_action(admin: Admin) -> Action[Redrive]:
    async def assess(tx: Tx, request: Redrive) -> Assessment:
        if request.in_batches:
            return await _assess_in_batches(tx, request)
        ids = await selected_ids(tx, admin, request)
        amounts, unknown = await amounts_of(tx, ids), await count_unknown_amounts(tx, ids)
        text = f"redrive {request.count:,} parked messages of {request.queue}{_listed(amounts)}"
        text += f", {unknown:,} with an unknown amount" if unknown else ""
        waiting = await count_in_review(tx, ids)
        text += f", {waiting:,} with an effect in review, which go straight back to waiting" if waiting else ""
        # Redriving one message is daily work. With many, nobody looks at each, and where thresholds exist an unknown
        # amount may exceed any of them.
        many = request.count > 1 and unknown and await thresholds(tx)
        because = f"the amounts of {unknown:,} of {request.count:,} messages are not known" if many else ""
        return Assessment(f"{request.queue} {request.fingerprint[:16]}", text, amounts, unknown, because)

    async def execute(tx: Tx, request: Redrive, by: str) -> dict[str, Any]:
        if request.in_batches:
            why = f"redrive of {request.count:,} parked messages"
            begun = await bulk.start(
                tx, bulk.Kind.REDRIVE, request.queue, State.PARKED, request.which, request.count, by, why
            )
            return {"queue": request.queue, "redriven": 0, "operation": begun.id}
        ids = await selected_ids(tx, admin, request)
        redriven = await admin.redrive(request.queue, Filter(ids=ids), within=tx.connection) if ids else 0
        if redriven != request.count:
            raise Stale(f"{request.count - redriven} of the {request.count} messages are being changed by others")
        tx.sent_to.add(request.queue)
        return {"queue": request.queue, "redriven": redriven}

    return Action("redrive", Redrive, assess, execute, _parked_messages)


def _parked_messages(subject: str) -> Link:
    queue = subject.removesuffix(IN_BATCHES) if subject.endswith(IN_BATCHES) else subject.rpartition(" ")[0]
    return Link("The parked messages", f"/queues/{queue}", {"state": State.PARKED})


async def _assess_in_batches(tx: Tx, request: Redrive) -> Assessment:
    """The amounts of so many messages are not added up: wherever thresholds exist, a second person is needed."""
    text = f"redrive {request.count:,} parked messages of {request.queue} in batches; their amounts are not added up"
    because = f"nobody can check {request.count:,} messages one by one" if await thresholds(tx) else ""
    return Assessment(f"{request.queue}{IN_BATCHES}", text, [], request.count, because)


def write_off_action(_: Admin) -> Action[WriteOff]:
    async def execute(tx: Tx, request: WriteOff, by: str) -> dict[str, Any]:
        item = await write_off(tx, request.item_id, request.account, by, request.note)
        return {"written_off": item.id, "amount": str(item.amount), "account": request.account}

    return Action("write off", WriteOff, _assess_write_off, execute, _item_in_suspense)


def change_threshold_action(_: Admin) -> Action[ThresholdChange]:
    async def execute(tx: Tx, request: ThresholdChange, by: str) -> dict[str, Any]:
        asset = Asset(request.asset, request.exponent)
        was, above = _amount(request.was_minor, asset), _amount(request.above_minor, asset)
        if (now := await locked_threshold(tx, asset)) != was:
            raise Stale(f"the threshold was {_or_none(was)} and is now {_or_none(now)}; look again")
        if above is None:
            await remove_threshold(tx, asset, by)
        else:
            await set_threshold(tx, above, by)
        return {"asset": asset.code, "above": None if above is None else str(above)}

    return Action("change threshold", ThresholdChange, _assess_threshold_change, execute)


async def threshold_change(tx: Tx, asset: Asset, above: Amount | None) -> ThresholdChange:
    """The change from the current threshold to `above`, to be previewed and submitted; None removes the threshold."""
    was = await locked_threshold(tx, asset)
    minor = [None if each is None else each.to_minor_text() for each in (was, above)]
    return ThresholdChange(asset.code, asset.exponent, *minor)


async def redrive_request(tx: Tx, admin: Admin, queue: str, which: Filter) -> Redrive:
    """The redrive of the currently matching messages, to be previewed and submitted."""
    found = await select_messages(tx, admin, queue, State.PARKED, which)
    return Redrive(found.queue, found.which, found.count, found.fingerprint, found.in_batches)


async def select_messages(tx: Tx, admin: Admin, queue: str, state: State, which: Filter) -> Selection:
    """The messages that a change would affect now."""
    if state is State.PARKED:
        now: datetime = await tx.fetchval("select payonce.due_now()")
        end = now + timedelta(microseconds=1)
        which = replace(which, parked_before=end if which.parked_before is None else min(which.parked_before, end))
    ids = await admin.choose(queue, state, which, bulk.BULK_MAX + 1, within=tx.connection)
    if len(ids) > bulk.BULK_MAX:
        found = await admin.preview(queue, state, which)
        return Selection(queue, which, found.count - found.unreadable, fingerprint([]), in_batches=True)
    return Selection(queue, which, len(ids), fingerprint(ids))


async def selected_ids(tx: Tx, admin: Admin, request: Selection, state: State = State.PARKED) -> list[UUID]:
    """The ids of exactly the messages that were shown. Raises Stale if they have changed."""
    ids = await admin.choose(request.queue, state, request.which, bulk.BULK_MAX + 1, within=tx.connection)
    if fingerprint(ids) != request.fingerprint:
        raise Stale(
            f"the {state} messages of {request.queue} are no longer the {request.count:,} that were shown; look again"
        )
    return ids


async def amounts_of(read: Reader | Tx, message_ids: Sequence[UUID]) -> list[Amount]:
    """What the runs of these messages may move, by asset: the amounts of their open effects, or of the latest effect
    where none is open."""
    rows = await read.fetch(
        """
        select e.asset, e.exponent, sum(e.amount_minor) as minor
        from unnest($1::uuid[]) as m (id) cross join lateral (
            select asset, exponent, amount_minor, state in ('intended', 'unknown', 'review') as open,
                bool_or(state in ('intended', 'unknown', 'review')) over () as any_open,
                row_number() over (order by id desc) as newest
            from payonce.effects where message_id = m.id and amount_minor is not null
        ) e
        where e.open or (not e.any_open and e.newest = 1)
        group by e.asset, e.exponent order by e.asset, e.exponent
        """,
        list(message_ids),
    )
    return [Amount(int(row["minor"]), Asset(row["asset"], row["exponent"])) for row in rows]


async def count_unknown_amounts(read: Reader | Tx, message_ids: Sequence[UUID]) -> int:
    """How many of these messages have no effect with an amount yet, so that nobody can tell what they will move."""
    count: int = await read.fetchval(
        """
        select count(*) from unnest($1::uuid[]) as m (id)
        where not exists (select from payonce.effects e where e.message_id = m.id and e.amount_minor is not null)
        """,
        list(message_ids),
    )
    return count


async def count_in_review(read: Reader | Tx, message_ids: Sequence[UUID]) -> int:
    """How many of these messages have an effect in review: redriven, they go straight back to waiting."""
    count: int = await read.fetchval(
        "select count(distinct message_id) from payonce.effects where message_id = any($1) and state = 'review'",
        list(message_ids),
    )
    return count


async def _assess_answer(tx: Tx, request: ReviewAnswer) -> Assessment:
    row = await tx.fetchrow(
        """
        select kind, key, generation, asset, exponent, amount_minor,
            safety = 'keyed' and key_valid_until <= payonce.due_now() as can_only_be_asked
        from payonce.effects where id = $1
        """,
        request.effect_id,
    )
    if row is None:
        raise Invalid(f"there is no effect {request.effect_id}; see: payonce effects list")
    amounts = []
    # Looking again may end in a send: a valid key is replayed, and an effect that the vendor does not show is fenced
    # and sent. Only for an expired key does the record guarantee that nothing but a query and another review can
    # follow.
    moves = request.answer is not Answer.LOOK_AGAIN or not row["can_only_be_asked"]
    if row["amount_minor"] is not None and moves:
        amounts = [Amount(int(row["amount_minor"]), Asset(row["asset"], row["exponent"]))]
    label = f"{row['kind']} {row['key']}:{row['generation']}"
    return Assessment(str(request.effect_id), f"answer {request.answer} for {label}{_listed(amounts)}", amounts)


def _item_in_suspense(subject: str) -> Link:
    return Link("The item in suspense", f"/reconcile/{subject}")


async def _assess_write_off(tx: Tx, request: WriteOff) -> Assessment:
    item = await item_of(tx, request.item_id)
    # A gain is assessed like a loss: either way a person's word makes the books agree.
    return Assessment(str(item.id), f"write off {describe(item)} to {request.account}", [abs(item.amount)])


async def _assess_threshold_change(_: Tx, request: ThresholdChange) -> Assessment:
    """A person who could raise or remove a threshold alone could bypass every approval and then restore it."""
    asset = Asset(request.asset, request.exponent)
    was, above = _amount(request.was_minor, asset), _amount(request.above_minor, asset)
    subject = f"{asset.code} of {asset.exponent} decimals"
    if above is None:
        return Assessment(subject, f"remove the threshold of {_or_none(was)}", because="it removes a threshold")
    text = f"set the threshold of {asset.code} from {_or_none(was)} to {above}"
    return Assessment(subject, text, because="it raises a threshold" if was is not None and above > was else "")


def _amount(minor: str | None, asset: Asset) -> Amount | None:
    return None if minor is None else Amount.from_minor(minor, asset)


def _or_none(amount: Amount | None) -> str:
    return "none" if amount is None else str(amount)


def _listed(amounts: Sequence[Amount]) -> str:
    return f" ({', '.join(map(str, amounts))})" if amounts else ""
