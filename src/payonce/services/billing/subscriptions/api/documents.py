"""Plans, subscriptions and invoices as they are shown."""

from datetime import datetime
from typing import Any, Final

from pydantic import BaseModel, Field

from payonce.http.kit.values import Money
from payonce.services.billing.subscriptions.model import (
    AfterDunning,
    ChangeState,
    ChangeTiming,
    Due,
    Invoice,
    InvoiceState,
    LineKind,
    Plan,
    PlanChangeRecord,
    State,
    Subscription,
)
from payonce.services.billing.subscriptions.store import plans
from payonce.services.billing.subscriptions.store.credit_notes import CreditNote
from payonce.services.billing.wire import Action

OTHER_NAMES: Final = {State.INCOMPLETE: "pending", State.TRIALING: "trial", State.UNPAID: "revoked"}
"""What callers of the service before this one call a state, where it is another word."""
NAMED: Final = "The state under the name that older callers know: pending, trial and revoked, the others as they are."


class PlanDocument(BaseModel):
    id: str
    code: str
    version: int
    name: str
    price: Money
    interval: str = Field(description="day, week, month or year.")
    interval_count: int
    trial_days: int | None = Field(description="Of a trial, whose price is charged and given back.")
    renews_to: str | None = Field(description="Code of the plan that follows a trial.")
    features: dict[str, int | None] = Field(
        description="Limits by feature and allowance interval; null is without end."
    )
    allowance_interval: str = Field(description="How often the limits begin anew, counted from the billing anchor.")
    allowance_interval_count: int
    after_dunning: AfterDunning
    retired_at: datetime | None
    created_at: datetime

    @classmethod
    def of(cls, plan: Plan) -> "PlanDocument":
        allowance = plans.allowance_of(plan) or plans.interval_of(plan)
        return cls(
            id=plan.id,
            code=plan.code,
            version=plan.version,
            name=plan.name,
            price=Money.of(plan.price),
            interval=plan.interval_unit,
            interval_count=plan.interval_count,
            trial_days=plan.trial_days,
            renews_to=plan.renews_to,
            features=dict(plan.features),
            allowance_interval=allowance.unit.value,
            allowance_interval_count=allowance.count,
            after_dunning=plan.after_dunning,
            retired_at=plan.retired_at,
            created_at=plan.created_at,
        )


class PlanChangeDocument(BaseModel):
    """A change of plan that was accepted."""

    id: str = Field(description="Of a change now, also the id of its invoice.")
    from_plan_id: str
    to_plan_id: str
    when: ChangeTiming
    state: ChangeState = Field(description="pending, and in the end applied, failed or canceled.")
    reason: str | None = Field(description="Why it failed or was canceled.")
    effective_at: datetime | None = Field(
        description="When it was or will be applied; null while a change now awaits its payment."
    )
    migration_id: str | None = Field(description="Of an operator's move to another version of the plan.")
    requested_at: datetime
    ended_at: datetime | None

    @classmethod
    def of(cls, change: PlanChangeRecord, subscription: Subscription) -> "PlanChangeDocument":
        return cls(
            id=change.id,
            from_plan_id=change.from_plan_id,
            to_plan_id=change.to_plan_id,
            when=change.timing,
            state=change.state,
            reason=change.reason,
            effective_at=change.effective_at(subscription),
            migration_id=change.migration_id,
            requested_at=change.requested_at,
            ended_at=change.ended_at,
        )


class PlanChangeList(BaseModel):
    plan_changes: list[PlanChangeDocument]


class SubscriptionDocument(BaseModel):
    id: str
    account_id: str
    plan_id: str
    state: State
    status: str = Field(description=NAMED)
    time_zone: str
    test_clock_id: str | None
    period: int = Field(description="Counted from 0, the first one.")
    period_start: datetime | None
    period_end: datetime | None
    trial_ends_at: datetime | None
    converts_to_plan_id: str | None = Field(
        description="Of a trial: the plan that follows, in the version that was for sale as it began."
    )
    next_plan_id: str | None = Field(
        description="Taken up at the end of the period, or of a later one: plan_change says when."
    )
    plan_change: PlanChangeDocument | None = Field(
        description="The change of plan that is pending, or the last one that ended."
    )
    cancel_at_period_end: bool
    paused_at: datetime | None
    ended_at: datetime | None
    next_at: datetime | None = Field(description="When something happens next, and below what.")
    next: Due | None
    reason: str | None
    revision: int
    trace_id: str | None
    created_at: datetime
    updated_at: datetime

    @classmethod
    def of(cls, subscription: Subscription, change: PlanChangeRecord | None = None) -> "SubscriptionDocument":
        same = {
            name: getattr(subscription, name)
            for name in cls.model_fields
            if name not in ("status", "next_at", "next", "plan_change")
        }
        return cls(
            **same,
            status=OTHER_NAMES.get(subscription.state, subscription.state.value),
            next_at=subscription.due_at,
            next=subscription.due_for,
            plan_change=None if change is None else PlanChangeDocument.of(change, subscription),
        )


class SubscriptionPage(BaseModel):
    subscriptions: list[SubscriptionDocument]
    next_after: str | None = Field(description="Give it as `after` for the next page; null on the last one.")


class EventDocument(BaseModel):
    id: int
    kind: str
    from_state: State | None
    to_state: State | None
    detail: dict[str, Any]
    at: datetime = Field(description="In the customer's time.")


class EventPage(BaseModel):
    events: list[EventDocument]
    next_after: int | None


class LineDocument(BaseModel):
    line: int
    kind: LineKind
    text: str
    plan_id: str
    amount: Money
    service_start: datetime
    service_end: datetime


class CreditNoteDocument(BaseModel):
    id: str
    number: str
    refund_id: str | None
    amount: Money
    reason: str
    issued_at: datetime

    @classmethod
    def of(cls, note: CreditNote) -> "CreditNoteDocument":
        return cls(
            id=note.id,
            number=note.number,
            refund_id=note.refund_id,
            amount=Money.of(note.amount),
            reason=note.reason,
            issued_at=note.issued_at,
        )


class InvoiceDocument(BaseModel):
    id: str
    number: str
    account_id: str
    subscription_id: str
    action: Action
    plan_id: str
    period: int | None = Field(description="Null for a change of plan within one.")
    period_start: datetime
    period_end: datetime
    total: Money
    credit: Money = Field(description="What of it the customer's credit covers.")
    due: Money
    refunded: Money
    state: InvoiceState
    charging: bool = Field(description="A charge was asked for and has not been answered.")
    failures: int
    decline_code: str | None = Field(description="Of the last charge that failed.")
    transaction_id: str | None
    issued_at: datetime
    paid_at: datetime | None
    paid_with: str | None = Field(description="The card that was charged, as the customer knows it.")
    lines: list[LineDocument]

    @classmethod
    def of(cls, invoice: Invoice) -> "InvoiceDocument":
        return cls(**_shown(invoice))


class InvoiceDetails(InvoiceDocument):
    credit_notes: list[CreditNoteDocument]

    @classmethod
    def told(cls, invoice: Invoice, notes: list[CreditNote]) -> "InvoiceDetails":
        return cls(**_shown(invoice), credit_notes=[CreditNoteDocument.of(note) for note in notes])


class InvoicePage(BaseModel):
    invoices: list[InvoiceDocument]
    next_after: str | None = Field(description="Give it as `after` for the next page; null on the last one.")


def _shown(invoice: Invoice) -> dict[str, Any]:
    amounts = {name: Money.of(getattr(invoice, name)) for name in ("total", "credit", "due", "refunded")}
    lines = [
        LineDocument(
            line=line.line,
            kind=line.kind,
            text=line.text,
            plan_id=line.plan_id,
            amount=Money.of(line.amount),
            service_start=line.service_start,
            service_end=line.service_end,
        )
        for line in invoice.lines
    ]
    same = {name: getattr(invoice, name) for name in InvoiceDocument.model_fields if name not in (*amounts, "lines")}
    return {**same, **amounts, "lines": lines}
