"""What payments did for a subscription, as part of its timeline: charges, refunds, and what was told of them."""

from collections.abc import Sequence
from typing import Final

from payonce.engine.monitoring.timeline import TimelineEntry
from payonce.kit.words import counted
from payonce.services.billing.payments.model import RefundState, State
from payonce.services.billing.payments.store.queries import Charged, Delivery, GivenBack

_REFUND_SAID: Final = {
    RefundState.PENDING: "started",
    RefundState.SUCCEEDED: "success",
    RefundState.FAILED: "failed",
}


def facts(charged: Sequence[Charged], told: Sequence[Delivery]) -> list[TimelineEntry]:
    """In time order."""
    found = [fact for each in charged for fact in _of_charge(each)]
    return sorted([*found, *map(_of_delivery, told)], key=lambda fact: fact.at)


def _of_charge(each: Charged) -> list[TimelineEntry]:
    by = f" by {each.card}" if each.card else ""
    said = f"charge {each.id}, try {each.generation}{by}"
    begun = TimelineEntry(each.created_at, "charge", said, "started", None, each.amount)
    return [begun, *_ended(each), *(_of_refund(each, back) for back in each.refunds)]


def _ended(each: Charged) -> list[TimelineEntry]:
    if each.ended_at is None:
        return []
    if each.state is not State.FAILED:
        said = f"charge {each.id} succeeded as {each.gateway_id}"
        return [TimelineEntry(each.ended_at, "charge", said, "success", None, each.amount)]
    hard = "; no further try with this card" if each.hard else ""
    said = f"charge {each.id} failed: {each.decline_code or 'no code'}"
    return [TimelineEntry(each.ended_at, "charge", said, "failed", f"{each.reason}{hard}", each.amount)]


def _of_refund(each: Charged, back: GivenBack) -> TimelineEntry:
    at, said = back.ended_at or back.created_at, f"refund {back.id} of charge {each.id}"
    said += ", outside the gateway" if back.outside else ""
    return TimelineEntry(at, "refund", said, _REFUND_SAID[back.state], back.failure or back.reason, back.amount)


def _of_delivery(each: Delivery) -> TimelineEntry:
    said = counted(each.attempts, "attempt", "attempts") + ("" if each.delivered_at else ", not taken yet")
    if each.last_error:
        said += f", last error: {each.last_error}"
    state = "delivered" if each.delivered_at else "waiting"
    return TimelineEntry(
        each.delivered_at or each.created_at, "notification", f"notification {each.event_id}", state, said
    )
