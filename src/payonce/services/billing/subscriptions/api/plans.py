"""Plans over HTTP: everybody reads the plans for sale; operators add and retire versions."""

from typing import Annotated, Final

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from payonce.engine.messages.transaction import Tx
from payonce.http.kit.context import AppContextDep, Trace
from payonce.http.kit.idempotency import Once
from payonce.http.kit.problems import not_found, responses
from payonce.http.kit.values import NO_CONTROLS, RequestBody
from payonce.kit.money import Amount, asset_of
from payonce.kit.outcomes import Invalid
from payonce.services.billing.api.callers import (
    BillingCaller,
    caller_of,
    require_idempotent,
    require_operator,
    require_resource,
)
from payonce.services.billing.scopes import OPERATE
from payonce.services.billing.subscriptions.api.common_routes import CHANGES, Id, refusals, refusing
from payonce.services.billing.subscriptions.api.documents import PlanDocument
from payonce.services.billing.subscriptions.domain.calendar import Interval, Unit
from payonce.services.billing.subscriptions.domain.config import SubscriptionConfig
from payonce.services.billing.subscriptions.model import AfterDunning
from payonce.services.billing.subscriptions.store import plans
from payonce.services.billing.subscriptions.store.plans import Offer

PREFIX: Final = "/v1/plans"
LIMIT_MAX: Final = 10**15
OPEN: Final = responses(400, 404, 422, 503)

Code = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,59}$")]
Feature = Annotated[str, Field(min_length=1, max_length=100, pattern=NO_CONTROLS)]


class PlanOffer(RequestBody):
    """An existing code gets a new version; subscriptions keep the version that they have."""

    code: Code
    name: Annotated[str, Field(min_length=1, max_length=200, pattern=NO_CONTROLS)]
    price: str = Field(pattern=r"^[0-9]{1,12}(\.[0-9]{1,4})?$", description="In major units as text, such as 29.00.")
    currency: str = Field(pattern="^[A-Z]{3}$", examples=["AED"])
    interval: Unit = Unit.MONTH
    interval_count: int = Field(1, ge=1, le=366)
    features: dict[Feature, Annotated[int, Field(ge=0, le=LIMIT_MAX)] | None] = Field(
        default_factory=dict, max_length=plans.FEATURES_MAX, description="Limits by feature; null is unlimited."
    )
    allowance_interval: Unit | None = Field(
        None,
        description="How often the limits reset, such as every month of an annual plan. Null: every billing period.",
    )
    allowance_interval_count: int | None = Field(None, ge=1, le=366, description="Default: 1.")
    after_dunning: AfterDunning = AfterDunning.UNPAID
    trial_days: int | None = Field(None, ge=1, le=366)
    renews_to: Code | None = Field(None, description="For a trial: code of the plan that follows.")


class Plans(BaseModel):
    plans: list[PlanDocument]


def plan_routes() -> APIRouter:
    routes = APIRouter(prefix=PREFIX, tags=["plans"])

    @routes.get("", summary="List the plans for sale, cheapest first", responses=OPEN)
    async def list_plans(context: AppContextDep) -> Plans:
        require_resource(context, SubscriptionConfig)
        return Plans(plans=[PlanDocument.of(plan) for plan in await plans.for_sale(context.read)])

    @routes.get("/{plan_id}", summary="Get a version by its id, or the current version by its code", responses=OPEN)
    async def show_plan(plan_id: Id, context: AppContextDep) -> PlanDocument:
        require_resource(context, SubscriptionConfig)
        found = await plans.find(context.read, plan_id)
        if found is None:
            raise not_found(f"plan {plan_id!r}")
        return PlanDocument.of(found)

    @routes.post(
        "",
        status_code=201,
        summary="Add a plan, or a new version of one",
        response_model=PlanDocument,
        responses=CHANGES,
    )
    async def add_plan(
        body: PlanOffer, context: AppContextDep, once: Annotated[Once, require_idempotent(OPERATE, operators=True)]
    ) -> Response:
        require_resource(context, SubscriptionConfig)

        async def act(tx: Tx) -> PlanDocument:
            made = await plans.add_version(tx, _offer(body))
            text = f"for sale at {made.price.to_text()} {made.price.asset}"
            await tx.audit("billing.plans", made.id, text, actor=caller_of(once).holder)
            return PlanDocument.of(made)

        return await once.answer(refusing(act), status=201, location=lambda made: f"{PREFIX}/{made.id}")

    @routes.post("/{plan_id}/retire", summary="Stop selling a version; subscriptions keep it", responses=CHANGES)
    async def retire_plan(
        plan_id: Id, context: AppContextDep, trace: Trace, caller: Annotated[BillingCaller, require_operator(OPERATE)]
    ) -> PlanDocument:
        require_resource(context, SubscriptionConfig)
        with refusals():
            async with context.begin(trace) as tx:
                retired = await plans.retire(tx, plan_id)
                await tx.audit("billing.plans", retired.id, "no longer for sale", actor=caller.holder)
        return PlanDocument.of(retired)

    return routes


def _offer(body: PlanOffer) -> Offer:
    return Offer(
        code=body.code,
        name=body.name,
        price=Amount.from_decimal(body.price, asset_of(body.currency)),
        interval=Interval(body.interval, body.interval_count),
        features=body.features,
        after_dunning=body.after_dunning,
        trial_days=body.trial_days,
        renews_to=body.renews_to,
        allowance=_allowance(body),
    )


def _allowance(body: PlanOffer) -> Interval | None:
    if body.allowance_interval is None:
        if body.allowance_interval_count is not None:
            raise Invalid("allowance_interval_count needs allowance_interval; give both")
        return None
    return Interval(body.allowance_interval, body.allowance_interval_count or 1)
