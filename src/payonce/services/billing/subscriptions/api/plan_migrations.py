"""Plan migrations over HTTP: operators preview, start, follow and cancel moves of subscriptions to a newer version."""

from datetime import datetime
from typing import Annotated, Final

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, Field

from payonce.engine.messages.transaction import Tx
from payonce.http.kit.context import AppContextDep
from payonce.http.kit.idempotency import Once
from payonce.http.kit.problems import not_found
from payonce.http.kit.values import PAGE_DEFAULT, Limit, Money, Note, RequestBody
from payonce.services.billing.api.callers import (
    BillingCaller,
    caller_of,
    require_idempotent,
    require_operator,
    require_resource,
)
from payonce.services.billing.scopes import OPERATE
from payonce.services.billing.subscriptions.api.common_routes import (
    CHANGES,
    ID,
    READS,
    Id,
    IdText,
    refusals,
    refusing,
)
from payonce.services.billing.subscriptions.domain.config import SubscriptionConfig
from payonce.services.billing.subscriptions.handlers import plan_migrations, plan_moves
from payonce.services.billing.subscriptions.handlers.plan_migrations import NOTICE_DAYS, NOTICE_DAYS_MAX, Preview
from payonce.services.billing.subscriptions.handlers.plan_moves import MigrationState, PlanMigration
from payonce.services.billing.subscriptions.model import Plan, State
from payonce.services.billing.subscriptions.store import plans

PREFIX: Final = "/v1/plan-migrations"

Operator = Annotated[BillingCaller, require_operator(OPERATE)]
Orderer = Annotated[Once, require_idempotent(OPERATE, operators=True)]
FromPlan = Annotated[str, Query(pattern=ID, description="Id of the older version.")]
ToPlan = Annotated[str | None, Query(pattern=ID, description="Id of the newer version. Default: the one for sale.")]
NOTICE: Final = "Minimum number of days between the announcement and the first renewal on the newer version."
NoticeDays = Annotated[int, Query(ge=0, le=NOTICE_DAYS_MAX, description=NOTICE)]


class MigrationOrder(RequestBody):
    from_plan_id: IdText = Field(description="Id of the older version.")
    to_plan_id: IdText | None = Field(None, description="Id of the newer version. Default: the one for sale.")
    note: Note = Field(description="The reason, for merchants' webhooks and the audit log.")
    notice_days: int = Field(NOTICE_DAYS, ge=0, le=NOTICE_DAYS_MAX, description=NOTICE)


class MigrationCancellation(RequestBody):
    note: Note = Field(description="The reason, for the audit log.")


class TermsDocument(BaseModel):
    """The billing terms of a version, and its limits that differ from the other version's."""

    interval: str
    interval_count: int
    allowance_interval: str = Field(description="How often the limits reset.")
    allowance_interval_count: int
    features: dict[str, int | None] = Field(
        description="Limits that differ; null is unlimited, and missing features are not included."
    )

    @classmethod
    def of(cls, plan: Plan, than: Plan) -> "TermsDocument":
        return cls(**plans.terms_of(plan, than))


class PreviewDocument(BaseModel):
    from_plan_id: str
    to_plan_id: str
    notice_days: int
    subscriptions: int = Field(description="Number of subscriptions that would be moved.")
    by_state: dict[State, int]
    canceling: int = Field(
        description="Subscriptions canceled at the end of their period; moved if the cancellation is withdrawn."
    )
    choosing: int = Field(description="Subscriptions changing to another plan; moved if that change is withdrawn.")
    price: Money
    new_price: Money
    terms: TermsDocument
    new_terms: TermsDocument
    total: Money = Field(description="Current total for one period of all of them.")
    new_total: Money
    first_effective_at: datetime | None = Field(description="The earliest renewal on the newer version.")
    last_effective_at: datetime | None

    @classmethod
    def of(cls, preview: Preview) -> "PreviewDocument":
        return cls(
            from_plan_id=preview.older.id,
            to_plan_id=preview.newer.id,
            notice_days=preview.notice_days,
            subscriptions=preview.subscriptions,
            by_state={State(state): count for state, count in preview.by_state.items()},
            canceling=preview.canceling,
            choosing=preview.choosing,
            price=Money.of(preview.older.price),
            new_price=Money.of(preview.newer.price),
            terms=TermsDocument.of(preview.older, preview.newer),
            new_terms=TermsDocument.of(preview.newer, preview.older),
            total=Money.of(preview.before),
            new_total=Money.of(preview.after),
            first_effective_at=preview.first_at,
            last_effective_at=preview.last_at,
        )


class MigrationDocument(BaseModel):
    id: str
    from_plan_id: str
    to_plan_id: str
    state: MigrationState = Field(description="done: every change is scheduled and is applied at its renewal.")
    note: str
    requested_by: str
    notice_days: int
    scheduled: int = Field(
        description="Number of subscriptions with a change scheduled by this migration, including withdrawn ones."
    )
    withdrawn: int
    created_at: datetime
    updated_at: datetime

    @classmethod
    def of(cls, migration: PlanMigration) -> "MigrationDocument":
        return cls(**{name: getattr(migration, name) for name in cls.model_fields})


class MigrationList(BaseModel):
    plan_migrations: list[MigrationDocument]


def plan_migration_routes() -> APIRouter:
    routes = APIRouter(prefix=PREFIX, tags=["plans"])
    _add_reading(routes)
    _add_ordering(routes)
    return routes


def _add_reading(routes: APIRouter) -> None:
    @routes.get("", summary="List plan migrations, newest first", responses=READS)
    async def list_plan_migrations(context: AppContextDep, _: Operator, limit: Limit = PAGE_DEFAULT) -> MigrationList:
        require_resource(context, SubscriptionConfig)
        found = await plan_moves.listed(context.read, limit)
        return MigrationList(plan_migrations=[MigrationDocument.of(each) for each in found])

    @routes.get("/preview", summary="Preview a plan migration", responses=CHANGES)
    async def preview_plan_migration(
        context: AppContextDep,
        _: Operator,
        from_plan_id: FromPlan,
        to_plan_id: ToPlan = None,
        notice_days: NoticeDays = NOTICE_DAYS,
    ) -> PreviewDocument:
        require_resource(context, SubscriptionConfig)
        with refusals():
            found = await plan_migrations.preview(context.read, from_plan_id, to_plan_id, notice_days)
            return PreviewDocument.of(found)

    @routes.get("/{migration_id}", summary="Get a plan migration", responses=READS)
    async def show_plan_migration(migration_id: Id, context: AppContextDep, _: Operator) -> MigrationDocument:
        require_resource(context, SubscriptionConfig)
        found = await plan_moves.find(context.read, migration_id)
        if found is None:
            raise not_found(f"plan migration {migration_id!r}")
        return MigrationDocument.of(found)


def _add_ordering(routes: APIRouter) -> None:
    @routes.post(
        "",
        status_code=202,
        summary="Move subscriptions of an older plan version at their renewal",
        response_model=MigrationDocument,
        responses=CHANGES,
    )
    async def order_plan_migration(body: MigrationOrder, context: AppContextDep, once: Orderer) -> Response:
        require_resource(context, SubscriptionConfig)

        async def act(tx: Tx) -> MigrationDocument:
            by = caller_of(once).holder
            ordered = await plan_migrations.start(
                tx, body.from_plan_id, body.to_plan_id, by, body.note, body.notice_days
            )
            return MigrationDocument.of(ordered)

        return await once.answer(refusing(act), status=202, location=lambda made: f"{PREFIX}/{made.id}")

    @routes.post(
        "/{migration_id}/cancel",
        status_code=202,
        summary="Cancel a plan migration and its pending changes",
        response_model=MigrationDocument,
        responses=CHANGES,
    )
    async def cancel_plan_migration(
        migration_id: Id, body: MigrationCancellation, context: AppContextDep, once: Orderer
    ) -> Response:
        require_resource(context, SubscriptionConfig)

        async def act(tx: Tx) -> MigrationDocument:
            by = caller_of(once).holder
            return MigrationDocument.of(await plan_migrations.cancel(tx, migration_id, by, body.note))

        return await once.answer(refusing(act), status=202)
