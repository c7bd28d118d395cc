"""Rendering of the simulated gateway's answers in its wire format."""

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from payonce.vendors.books import Denied
from payonce.vendors.gateway.books import ChargeEntry, GatewayBooks, Line, RefundEntry
from payonce.vendors.gateway.cards import MESSAGES, Card
from payonce.vendors.gateway.port import ChargeStatus

Entry = TypeVar("Entry")


def charge(entry: ChargeEntry, refunded: int) -> dict[str, Any]:
    code = entry.decline_code
    return {
        "id": entry.id,
        "object": "charge",
        "status": ChargeStatus.FAILED if code else ChargeStatus.SUCCEEDED,
        "amount": entry.amount,
        "amount_captured": entry.captured,
        "amount_refunded": refunded,
        "currency": entry.currency,
        "payment_method": entry.payment_method,
        "reference": entry.reference,
        "metadata": dict(entry.metadata),
        "created": seconds(entry.created),
        "delay_ms": entry.delay_ms,
        "failure_code": code,
        "failure_message": MESSAGES.get(code) if code else None,
    }


def refund(entry: RefundEntry) -> dict[str, Any]:
    return {
        "id": entry.id,
        "object": "refund",
        "status": "succeeded",
        "charge": entry.charge,
        "amount": entry.amount,
        "currency": entry.currency,
        "reference": entry.reference,
        "reason": entry.reason,
        "created": seconds(entry.created),
    }


def token(card: Card) -> dict[str, Any]:
    return {
        "id": card.token,
        "object": "payment_method",
        "brand": card.brand,
        "last4": card.last4,
        "exp_month": card.exp_month,
        "exp_year": card.exp_year,
    }


def line(entry: Line) -> dict[str, Any]:
    return {
        "id": f"txn_{entry.number}",
        "object": "balance_transaction",
        "type": entry.kind,
        "source": entry.source,
        "reference": entry.reference,
        "amount": entry.amount,
        "currency": entry.currency,
        "created": seconds(entry.created),
    }


def page(entries: Sequence[Entry], limit: int, written: Callable[[Entry], dict[str, Any]]) -> dict[str, Any]:
    return {"object": "list", "data": [written(each) for each in entries[:limit]], "has_more": len(entries) > limit}


def error(refusal: Denied) -> dict[str, Any]:
    return {"error": {"type": "invalid_request_error", "code": refusal.code, "message": refusal.text}}


def declined(entry: ChargeEntry) -> dict[str, Any]:
    code = entry.decline_code or ""
    return {
        "error": {
            "type": "card_error",
            "code": code,
            "message": MESSAGES.get(code, "The card was declined."),
            "charge": entry.id,
            "reference": entry.reference,
        }
    }


def books(kept: GatewayBooks) -> dict[str, Any]:
    """For oracles in other processes."""
    currencies = sorted({each.currency for each in kept.lines})
    return {
        "charges": [charge(each, kept.refunded_of(each.id)) for each in kept.charges.values()],
        "refunds": [refund(each) for each in kept.refunds.values()],
        "captured": {code: kept.captured_total(code).minor for code in currencies},
        "refunded": {code: kept.refunded_total(code).minor for code in currencies},
        "captures_per_invoice": dict(kept.captures_per_invoice()),
        "captured_twice": _above_one(kept.captures_per_invoice().items()),
    }


def seconds(at: datetime) -> int:
    return int(at.timestamp())


def moment(at: datetime) -> str:
    return f"{at.astimezone(UTC).replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"


def _above_one(counted: Iterable[tuple[str, int]]) -> list[str]:
    return [name for name, count in counted if count > 1]
