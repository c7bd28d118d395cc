"""Customers over HTTP, for a merchant's back end: create, list, read and edit them, and invite them to set a
password."""

from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Final

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, Field, StringConstraints

from payonce.engine.messages.transaction import Tx
from payonce.http.kit.context import AppContextDep, Trace
from payonce.http.kit.idempotency import Once
from payonce.http.kit.problems import not_found
from payonce.http.kit.values import NO_CONTROLS, PAGE_DEFAULT, Limit, RequestBody
from payonce.services.billing.api.callers import BillingCaller, require_idempotent, require_operator, require_resource
from payonce.services.billing.scopes import OPERATE, READ
from payonce.services.billing.subscriptions.api.auth import Email, Locale, PersonName, TimeZone
from payonce.services.billing.subscriptions.api.common_routes import (
    CHANGES,
    READS,
    Cursor,
    Id,
    page_after,
    refusals,
    refusing,
)
from payonce.services.billing.subscriptions.domain.config import SubscriptionConfig
from payonce.services.billing.subscriptions.model import Account
from payonce.services.billing.subscriptions.store import customers, password_tokens
from payonce.services.billing.subscriptions.store.customers import (
    EDITABLE,
    EXTERNAL_ID_MAX_CHARS,
    NewCustomer,
)

PREFIX: Final = "/v1/customers"
REVISION_MAX: Final = 2**31 - 1
ABOUT_EDITS: Final = (
    "Omitted fields stay unchanged. 409 with the type `…:stale-revision`: the customer was edited since "
    "`revision` was read, and nothing was changed. An edit that changes nothing returns 200, so requests can be "
    "repeated."
)
ABOUT_INVITATIONS: Final = (
    "Put the token into a link to your own page, which sends it with the new password to `POST "
    "/v1/auth/set-password`. A customer has at most one token: creating another replaces it."
)

# Opaque: only control characters, and whitespace at the ends, are rejected.
ExternalIdText = Annotated[
    str,
    StringConstraints(
        min_length=1,
        max_length=EXTERNAL_ID_MAX_CHARS,
        pattern=r"^[^\s\x00-\x1f\x7f]([^\x00-\x1f\x7f]*[^\s\x00-\x1f\x7f])?$",
    ),
]
Viewer = Annotated[BillingCaller, require_operator(READ)]
Editor = Annotated[BillingCaller, require_operator(OPERATE)]
Orderer = Annotated[Once, require_idempotent(OPERATE, operators=True)]


class CustomerOrder(RequestBody):
    email: Email = Field(description="Unique among customers; case-insensitive.")
    name: PersonName = Field("", description="Printed on invoices; without it, the e-mail address is.")
    external_id: ExternalIdText | None = Field(None, description="Your own id for the customer; unique.")
    time_zone: TimeZone = "UTC"
    locale: Locale = "en"


class CustomerEdit(RequestBody):
    revision: int = Field(ge=0, le=REVISION_MAX, description="The revision that you read.")
    # The default is not documented: omitting the field is allowed, null is not.
    email: Email = Field(default_factory=str)
    name: PersonName = Field(default_factory=str)
    external_id: ExternalIdText | None = Field(None, description="null removes it.")
    time_zone: TimeZone = Field(
        default_factory=str, description="For future subscriptions; existing ones keep their calendar."
    )
    locale: Locale = Field(default_factory=str, description="For future invoices.")

    @property
    def changes(self) -> dict[str, str | None]:
        return {name: getattr(self, name) for name in EDITABLE if name in self.model_fields_set}


class CustomerDocument(BaseModel):
    id: str = Field(description="Called account_id in other routes.")
    external_id: str | None
    email: str
    name: str
    time_zone: str
    locale: str
    has_password: bool = Field(description="Without a password nobody can log in as this customer.")
    test_clock_id: str | None
    revision: int = Field(description="Grows with every edit.")
    created_at: datetime
    updated_at: datetime

    @classmethod
    def of(cls, customer: Account) -> "CustomerDocument":
        return cls(**{name: getattr(customer, name) for name in cls.model_fields})


class CustomerPage(BaseModel):
    customers: list[CustomerDocument]
    next_after: str | None = Field(description="Pass it as `after` to get the next page; null on the last page.")


class PasswordTokenDocument(BaseModel):
    token: str = Field(description="Valid for one use, and shown only once.")
    expires_at: datetime


def customer_routes() -> APIRouter:
    routes = APIRouter(prefix=PREFIX, tags=["customers"])
    _add_reading(routes)
    _add_writing(routes)

    @routes.post(
        "/{account_id}/password-tokens",
        status_code=201,
        responses=CHANGES,
        summary="Create a token with which a customer sets a password",
        description=ABOUT_INVITATIONS,
    )
    async def make_password_token(
        account_id: Id, context: AppContextDep, trace: Trace, caller: Editor
    ) -> PasswordTokenDocument:
        require_resource(context, SubscriptionConfig)
        with refusals():
            async with context.begin(trace) as tx:
                made = await password_tokens.create(tx, account_id, caller.holder)
        return PasswordTokenDocument(token=made.token, expires_at=made.expires_at)

    return routes


def _add_reading(routes: APIRouter) -> None:
    @routes.get("", summary="List customers, newest first", responses=READS)
    async def list_customers(
        context: AppContextDep,
        _: Viewer,
        external_id: Annotated[ExternalIdText | None, Query(description="Your own id for the customer.")] = None,
        email: Annotated[
            str | None, Query(min_length=3, max_length=300, pattern=NO_CONTROLS, description="The complete address.")
        ] = None,
        limit: Limit = PAGE_DEFAULT,
        after: Cursor = None,
    ) -> CustomerPage:
        require_resource(context, SubscriptionConfig)
        with refusals():
            found = await customers.listed(context.read, external_id, email, after, limit)
        shown = [CustomerDocument.of(each) for each in found]
        return CustomerPage(customers=shown, next_after=page_after(found, limit))

    @routes.get("/{account_id}", summary="Get a customer", responses=READS)
    async def show_customer(account_id: Id, context: AppContextDep, _: Viewer) -> CustomerDocument:
        require_resource(context, SubscriptionConfig)
        found = await customers.find(context.read, account_id)
        if found is None:
            raise not_found(f"customer {account_id!r}")
        return CustomerDocument.of(found)


def _add_writing(routes: APIRouter) -> None:
    @routes.post(
        "",
        status_code=201,
        summary="Create a customer without a password",
        responses=CHANGES,
        response_model=CustomerDocument,
    )
    async def create_customer(body: CustomerOrder, context: AppContextDep, once: Orderer) -> Response:
        require_resource(context, SubscriptionConfig)
        new = NewCustomer(body.email, body.name, body.external_id, body.time_zone, body.locale)

        async def act(tx: Tx) -> CustomerDocument:
            return CustomerDocument.of(await customers.create(tx, new, once.caller.holder))

        return await once.answer(refusing(act), status=HTTPStatus.CREATED, location=lambda made: f"{PREFIX}/{made.id}")

    @routes.patch("/{account_id}", summary="Edit a customer", description=ABOUT_EDITS, responses=CHANGES)
    async def edit_customer(
        account_id: Id, body: CustomerEdit, context: AppContextDep, trace: Trace, caller: Editor
    ) -> CustomerDocument:
        require_resource(context, SubscriptionConfig)
        with refusals():
            async with context.begin(trace) as tx:
                edited = await customers.edit(tx, account_id, body.revision, body.changes, caller.holder)
        return CustomerDocument.of(edited)
