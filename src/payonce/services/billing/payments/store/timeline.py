"""Payments' part of a subscription's timeline: charges, refunds, and their notifications."""

from collections.abc import Sequence
from typing import Final

from payonce.engine.monitoring.timeline import TimelineEntry
from payonce.kit.words import counted
from payonce.services.billing.payments.model import RefundState, State
from payonce.services.billing.payments.store.queries import ChargeSummary, Delivery, RefundSummary

_REFUND_STATES: Final = {
    RefundState.PENDING: "started",
    RefundState.SUCCEEDED: "success",
    RefundState.FAILED: "failed",
}


def facts(charged: Sequence[ChargeSummary], deliveries: Sequence[Delivery]) -> list[TimelineEntry]:
    """In chronological order."""
    found = [fact for each in charged for fact in _of_charge(each)]
    return sorted([*found, *map(_of_delivery, deliveries)], key=lambda fact: fact.at)


def _of_charge(each: ChargeSummary) -> list[TimelineEntry]:
    by = f" by {each.card}" if each.card else ""
    title = f"charge {each.id}, attempt {each.generation}{by}"
    begun = TimelineEntry(each.created_at, "charge", title, "started", None, each.amount)
    return [begun, *_ended(each), *(_of_refund(each, back) for back in each.refunds)]


def _ended(each: ChargeSummary) -> list[TimelineEntry]:
    if each.ended_at is None:
        return []
    if each.state is not State.FAILED:
        title = f"charge {each.id} succeeded as {each.gateway_id}"
        return [TimelineEntry(each.ended_at, "charge", title, "success", None, each.amount)]
    hard = "; no further attempt with this card" if each.hard else ""
    title = f"charge {each.id} failed: {each.decline_code or 'no code'}"
    return [TimelineEntry(each.ended_at, "charge", title, "failed", f"{each.reason}{hard}", each.amount)]


def _of_refund(each: ChargeSummary, back: RefundSummary) -> TimelineEntry:
    at, title = back.ended_at or back.created_at, f"refund {back.id} of charge {each.id}"
    title += ", outside the gateway" if back.outside else ""
    return TimelineEntry(at, "refund", title, _REFUND_STATES[back.state], back.failure or back.reason, back.amount)


def _of_delivery(each: Delivery) -> TimelineEntry:
    title = counted(each.attempts, "attempt", "attempts") + ("" if each.delivered_at else ", not accepted yet")
    if each.last_error:
        title += f", last error: {each.last_error}"
    state = "delivered" if each.delivered_at else "waiting"
    return TimelineEntry(
        each.delivered_at or each.created_at, "notification", f"notification {each.event_id}", state, title
    )
