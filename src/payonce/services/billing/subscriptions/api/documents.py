"""Response bodies of plans, subscriptions and invoices."""

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
"""Names of states in the earlier system, where they differ."""
NAMED: Final = (
    "The state under its name in the earlier system: pending, trial or revoked; other states keep their name."
)


class PlanDocument(BaseModel):
    id: str
    code: str
    version: int
    name: str
    price: Money
    interval: str = Field(description="day, week, month or year.")
    interval_count: int
    trial_days: int | None = Field(description="Length of a trial, whose price is charged and refunded.")
    renews_to: str | None = Field(description="Code of the plan that follows the trial.")
    features: dict[str, int | None] = Field(description="Limits per allowance interval, by feature; null is unlimited.")
    allowance_interval: str = Field(description="How often the limits reset, counted from the billing anchor.")
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
    """An accepted plan change."""

    id: str = Field(description="For an immediate change, also the id of its invoice.")
    from_plan_id: str
    to_plan_id: str
    when: ChangeTiming
    state: ChangeState = Field(description="pending, then applied, failed or canceled.")
    reason: str | None = Field(description="Why it failed or was canceled.")
    effective_at: datetime | None = Field(
        description="When it was or will be applied; null while an immediate change awaits payment."
    )
    migration_id: str | None = Field(description="The plan migration that scheduled it.")
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
    period: int = Field(description="Number of the current period, from 0.")
    period_start: datetime | None
    period_end: datetime | None
    trial_ends_at: datetime | None
    converts_to_plan_id: str | None = Field(
        description="For a trial: the plan that follows, in the version that was for sale when it began."
    )
    next_plan_id: str | None = Field(
        description="The plan from the end of this or a later period; plan_change has the date."
    )
    plan_change: PlanChangeDocument | None = Field(description="The pending plan change, or the last one that ended.")
    cancel_at_period_end: bool
    paused_at: datetime | None
    ended_at: datetime | None
    next_at: datetime | None = Field(description="When the next step, named in `next`, is due.")
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
    next_after: str | None = Field(description="Pass it as `after` to get the next page; null on the last page.")


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
    period: int | None = Field(description="Null for an invoice of a plan change.")
    period_start: datetime
    period_end: datetime
    total: Money
    credit: Money = Field(description="The part paid from the customer's credit.")
    due: Money
    refunded: Money
    state: InvoiceState
    charging: bool = Field(description="A charge is in progress.")
    failures: int
    decline_code: str | None = Field(description="Code of the last failed charge.")
    transaction_id: str | None
    issued_at: datetime
    paid_at: datetime | None
    paid_with: str | None = Field(description="The charged card, as printed on the invoice.")
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
    next_after: str | None = Field(description="Pass it as `after` to get the next page; null on the last page.")


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
