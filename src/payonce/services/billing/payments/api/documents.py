"""Request and response bodies of payments."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Final

from pydantic import BaseModel, Field, StringConstraints

from payonce.http.kit.values import NO_CONTROLS, Money, RequestBody
from payonce.services.billing.payments.model import PaymentMethod, Refund, RefundState, State, Transaction
from payonce.services.billing.payments.store.queries import Attempt, Delivery
from payonce.services.billing.wire import Action

ID: Final = r"^[0-9a-zA-Z_-]{1,100}$"
AMOUNT: Final = r"^[0-9]{1,12}(\.[0-9]{1,4})?$"

AccountId = Annotated[str, StringConstraints(pattern=ID)]
AmountText = Annotated[str, StringConstraints(pattern=AMOUNT)]
Words = Annotated[str, StringConstraints(min_length=1, max_length=500, pattern=NO_CONTROLS)]


class PaymentOrder(RequestBody):
    amount: AmountText = Field(description="In major units as text, such as 29.00; above zero.", examples=["29.00"])
    currency: str = Field(pattern="^[A-Z]{3}$", examples=["AED"])
    account_id: AccountId | None = Field(
        None, description="The account whose card is charged. Customers omit it; API keys and operators give it."
    )
    payment_method_id: AccountId | None = Field(None, description="Default: the account's default card.")
    description: Words | None = None


class RefundOrder(RequestBody):
    amount: AmountText | None = Field(
        None, description="In major units. Default: the rest of the charge that was not returned as credit."
    )
    beyond_credit: bool = Field(
        False,
        json_schema_extra={"deprecated": True},
        description="Rejected: the customer would get both money and credit. Pay out the credit instead.",
    )
    outside: bool = Field(
        False,
        description=(
            "The money was returned by bank or in cash: the refund is recorded and booked, and the gateway is not "
            "called. Rejected while the gateway processes a refund of the charge."
        ),
    )
    reason: Words


class MethodOrder(RequestBody):
    token: str = Field(
        pattern=r"^[A-Za-z]+_[A-Za-z0-9_]{1,120}$",
        description="The token that the customer's browser got from the gateway.",
        examples=["pm_1a2b3c"],
    )
    account_id: AccountId | None = Field(
        None, description="The account that gets the card. Customers omit it; API keys and operators give it."
    )


class RefundDocument(BaseModel):
    id: str
    transaction_id: str
    amount: Money
    reason: str
    state: RefundState
    failure: str | None
    outside: bool = Field(description="The money was returned outside the gateway.")
    created_at: datetime
    updated_at: datetime

    @classmethod
    def of(cls, refund: Refund) -> "RefundDocument":
        return cls(
            id=refund.id,
            transaction_id=refund.transaction_id,
            amount=Money.of(refund.amount),
            reason=refund.reason,
            state=refund.state,
            failure=refund.failure,
            outside=refund.outside,
            created_at=refund.created_at,
            updated_at=refund.updated_at,
        )


class RefundAnswer(BaseModel):
    """The refund that was started, or the approval that it needs above the threshold of its currency."""

    refund: RefundDocument | None = None
    approval: int | None = Field(default=None, description="Id of the approval that a second person grants.")
    expires_at: datetime | None = None


class TransactionDocument(BaseModel):
    id: str
    account_id: str
    subscription_id: str | None
    invoice_id: str | None
    generation: int = Field(description="Number of the attempt to charge the invoice.")
    action: Action
    payment_method_id: str | None
    amount: Money
    refunded: Money
    credited: Money = Field(description="The part that was returned as credit at a plan change.")
    state: State
    gateway_id: str | None
    decline_code: str | None
    hard: bool = Field(description="Another attempt with the same card cannot succeed.")
    reason: str | None
    description: str | None
    trace_id: str | None
    created_at: datetime
    updated_at: datetime

    @classmethod
    def of(cls, transaction: Transaction) -> "TransactionDocument":
        return cls(
            id=transaction.id,
            account_id=transaction.account_id,
            subscription_id=transaction.subscription_id,
            invoice_id=transaction.invoice_id,
            generation=transaction.generation,
            action=transaction.action,
            payment_method_id=transaction.payment_method_id,
            amount=Money.of(transaction.amount),
            refunded=Money.of(transaction.refunded),
            credited=Money.of(transaction.credited),
            state=transaction.state,
            gateway_id=transaction.gateway_id,
            decline_code=transaction.decline_code,
            hard=transaction.hard,
            reason=transaction.reason,
            description=transaction.metadata.get("description"),
            trace_id=transaction.trace_id,
            created_at=transaction.created_at,
            updated_at=transaction.updated_at,
        )


class TransactionDetails(BaseModel):
    transaction: TransactionDocument
    refunds: list[RefundDocument]


class TransactionPage(BaseModel):
    transactions: list[TransactionDocument]
    next_after: str | None = Field(description="Pass it as `after` to get the next page; null on the last page.")


class MethodDocument(BaseModel):
    id: str
    account_id: str
    brand: str
    last4: str
    exp_month: int
    exp_year: int
    is_default: bool
    created_at: datetime

    @classmethod
    def of(cls, method: PaymentMethod) -> "MethodDocument":
        return cls(
            id=method.id,
            account_id=method.account_id,
            brand=method.brand,
            last4=method.last4,
            exp_month=method.exp_month,
            exp_year=method.exp_year,
            is_default=method.is_default,
            created_at=method.created_at,
        )


class Methods(BaseModel):
    payment_methods: list[MethodDocument]


class AttemptDocument(BaseModel):
    way: str = Field(description="immediate or queued.")
    response_code: int | None
    response_body: str | None = Field(description="The beginning, without secrets.")
    error: str | None
    elapsed_ms: int
    created_at: datetime


class DeliveryDocument(BaseModel):
    event_id: str
    action: Action
    transaction_id: str | None
    refund_id: str | None
    delivered_at: datetime | None
    created_at: datetime
    attempts: list[AttemptDocument] = Field(description="Newest first, at most a hundred.")

    @classmethod
    def of(cls, found: Delivery, attempts: Sequence[Attempt]) -> "DeliveryDocument":
        return cls(
            event_id=found.event_id,
            action=Action(found.action),
            transaction_id=found.transaction_id,
            refund_id=found.refund_id,
            delivered_at=found.delivered_at,
            created_at=found.created_at,
            attempts=[
                AttemptDocument(**{name: getattr(each, name) for name in AttemptDocument.model_fields})
                for each in attempts
            ],
        )


class GatewayEventReceipt(BaseModel):
    """The response to the gateway."""

    status: str
