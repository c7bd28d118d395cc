"""Usage over HTTP: a fast path counts events, which are frequent; regular routes read and reset usage."""

from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Path, Query
from fastapi.routing import APIRoute
from pydantic import BaseModel, Field, StringConstraints
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from payonce.engine.messages.transaction import Tx
from payonce.http.kit.context import AppContextDep, context_of, trace_of
from payonce.http.kit.idempotency import REPLAYED, Once
from payonce.http.kit.json_bodies import refuse_repeated
from payonce.http.kit.problems import MEDIA_TYPE, Problem, not_found, responses
from payonce.http.kit.values import NO_CONTROLS, Limit, Note, RequestBody
from payonce.services.billing.api.callers import (
    BillingCaller,
    account_of,
    identify_caller,
    require_account_or_key,
    require_idempotent,
    require_resource,
)
from payonce.services.billing.api.card_numbers import refuse_in
from payonce.services.billing.scopes import OPERATE
from payonce.services.billing.subscriptions.api.common_routes import (
    CHANGES,
    ID,
    READS,
    ForAccount,
    IdText,
    OfAccount,
    Viewer,
)
from payonce.services.billing.subscriptions.api.usage_batch import UsageBatcher
from payonce.services.billing.subscriptions.domain.config import SubscriptionConfig
from payonce.services.billing.subscriptions.model import State
from payonce.services.billing.subscriptions.store import usage
from payonce.services.billing.subscriptions.store.usage import (
    DELTA_MAX,
    EVENT_ID_MAX_LENGTH,
    FEATURE_MAX_LENGTH,
    PERIODS_SHOWN_MAX,
    UsageRefusal,
    UsageRefused,
)

PREFIX: Final = "/v1/usage"
LIMIT_REACHED: Final = "urn:payonce:problem:usage-limit-reached"
PAGE: Final = 100
NEGATIVE_REFUSED: Final = (
    "a negative delta returns usage, which is reserved for operators and API keys with billing:operate; customers "
    "can only add usage"
)
COUNTS: Final = responses(400, 401, 403, 404, 413, 422, 429, 503)

Handle = Callable[[Request], Coroutine[Any, Any, Response]]
Feature = Annotated[str, StringConstraints(min_length=1, max_length=FEATURE_MAX_LENGTH, pattern=NO_CONTROLS)]


class UsageEvent(RequestBody):
    """A usage event. Repeated with the same `event_id`, it gets the first response and counts nothing."""

    feature_name: Feature
    delta: int = Field(
        1,
        ge=-DELTA_MAX,
        le=DELTA_MAX,
        json_schema_extra={"not": {"const": 0}},
        description="Negative values return usage; not allowed for customers.",
    )
    event_id: str = Field(min_length=1, max_length=EVENT_ID_MAX_LENGTH, pattern=NO_CONTROLS)
    account_id: ForAccount = None


class UsageEventDocument(BaseModel):
    feature_name: str
    event_id: str
    delta: int
    counted: int = Field(description="Less than the delta if more was returned than was used.")
    used: int
    limit: int | None = Field(description="Null is unlimited.")
    left: int | None
    period_start: datetime


class FeatureDocument(BaseModel):
    feature_name: str
    used: int
    limit: int | None
    left: int | None


class UsageDocument(BaseModel):
    subscription_id: str
    plan_id: str
    state: State
    period_start: datetime | None = Field(description="Start of the allowance window.")
    resets_at: datetime | None = Field(description="End of the window, when the limits reset.")
    features: list[FeatureDocument]


class PeriodDocument(BaseModel):
    subscription_id: str
    feature_name: str
    period_start: datetime
    total: int
    events: int


class UsageReset(RequestBody):
    account_id: IdText
    feature_name: Feature | None = Field(None, description="Default: every feature of the plan.")
    note: Note = Field(description="The reason, for the audit log.")


class ResetDocument(BaseModel):
    account_id: str
    reset: dict[str, int] = Field(description="The previous value of each counter, by feature.")


# These are Python patterns, whose $ also matches before a final line break.
_PLAIN: Final = NO_CONTROLS.replace("$", r"\Z")
_ID: Final = ID.replace("$", r"\Z")


class _EventBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`UsageEvent` on the fast path."""

    feature_name: Annotated[str, msgspec.Meta(min_length=1, max_length=FEATURE_MAX_LENGTH, pattern=_PLAIN)]
    event_id: Annotated[str, msgspec.Meta(min_length=1, max_length=EVENT_ID_MAX_LENGTH, pattern=_PLAIN)]
    delta: Annotated[int, msgspec.Meta(ge=-DELTA_MAX, le=DELTA_MAX)] = 1
    account_id: Annotated[str, msgspec.Meta(pattern=_ID)] | None = None


_decode: Final = msgspec.json.Decoder(_EventBody).decode
_encode: Final = msgspec.json.Encoder().encode


def usage_routes() -> APIRouter:
    routes = APIRouter(prefix=PREFIX, tags=["usage"])
    _add_counting(routes)
    _add_reading(routes)
    _add_resetting(routes)
    return routes


def short_usage_routes() -> Sequence[Route]:
    return [Route(f"{PREFIX}/use", _counting(), methods=["POST"], include_in_schema=False)]


class ShortRoute(APIRoute):
    """Documented like every route, but answered by a function that parses the request itself: resolving dependencies
    and validating three times costs more than counting."""

    def get_route_handler(self) -> Handle:
        return _counting()


def _counting() -> Handle:
    batcher: UsageBatcher | None = None

    async def use_feature(request: Request) -> Response:
        nonlocal batcher
        batcher = batcher or UsageBatcher(context_of(request).read)
        return await _count(request, batcher)

    return use_feature


def _add_counting(routes: APIRouter) -> None:
    async def use_feature(
        body: UsageEvent, caller: Annotated[BillingCaller, require_account_or_key(OPERATE)]
    ) -> UsageEventDocument:
        raise NotImplementedError("documented here, answered by ShortRoute")

    routes.add_api_route(
        "/use",
        use_feature,
        methods=["POST"],
        summary="Count a usage event once, against the plan's limit",
        responses=COUNTS,
        route_class_override=ShortRoute,
    )


async def _count(request: Request, batcher: UsageBatcher) -> Response:
    caller = await identify_caller(request, OPERATE)
    if request.scope["query_string"]:
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, "send the event in the body; this route has no query parameters")
    require_resource(context_of(request), SubscriptionConfig)
    body = await request.body()
    refuse_in(body)
    event = _read(body)
    account_id = account_of(caller, event.account_id)
    if event.delta < 0 and not caller.operator:
        raise Problem(HTTPStatus.FORBIDDEN, NEGATIVE_REFUSED)
    try:
        counted = await batcher.use(account_id, event.feature_name, event.delta, event.event_id)
    except UsageRefused as refusal:
        if refusal.why is UsageRefusal.OVER_LIMIT:
            return _over_limit(request, refusal)
        raise Problem(refusal.status, str(refusal)) from refusal
    answer = {
        "feature_name": counted.feature,
        "event_id": counted.event_id,
        "delta": counted.delta,
        "counted": counted.counted,
        "used": counted.used,
        "limit": counted.limit,
        "left": counted.left,
        "period_start": counted.period_start,
    }
    headers = {REPLAYED: "true"} if counted.repeated else None
    return Response(_encode(answer), media_type="application/json", headers=headers)


def _add_reading(routes: APIRouter) -> None:
    @routes.get("", summary="Get the usage of each feature in the current allowance window", responses=READS)
    async def show_usage(context: AppContextDep, caller: Viewer, account_id: OfAccount = None) -> UsageDocument:
        require_resource(context, SubscriptionConfig)
        found = await _current_usage(context.read, account_of(caller, account_id))
        return UsageDocument(
            subscription_id=found.subscription_id,
            plan_id=found.plan_id,
            state=found.state,
            period_start=found.period_start,
            resets_at=found.period_end,
            features=[_feature(each) for each in found.features],
        )

    @routes.get("/feature/{feature_name}", summary="Get the usage of one feature", responses=READS)
    async def show_feature_usage(
        feature_name: Annotated[Feature, Path()], context: AppContextDep, caller: Viewer, account_id: OfAccount = None
    ) -> FeatureDocument:
        require_resource(context, SubscriptionConfig)
        found = (await _current_usage(context.read, account_of(caller, account_id))).of(feature_name)
        if found is None:
            raise not_found(f"feature {feature_name!r} in this plan")
        return _feature(found)

    @routes.get("/stats", summary="List totals by allowance window, latest first", responses=READS)
    async def show_usage_stats(
        context: AppContextDep,
        caller: Viewer,
        account_id: OfAccount = None,
        feature_name: Annotated[Feature | None, Query()] = None,
        limit: Limit = PAGE,
    ) -> list[PeriodDocument]:
        require_resource(context, SubscriptionConfig)
        found = await usage.totals(
            context.read, account_of(caller, account_id), feature_name, min(limit, PERIODS_SHOWN_MAX)
        )
        return [
            PeriodDocument(
                subscription_id=each.subscription_id,
                feature_name=each.feature,
                period_start=each.period_start,
                total=each.total,
                events=each.events,
            )
            for each in found
        ]


def _add_resetting(routes: APIRouter) -> None:
    @routes.post(
        "/reset",
        summary="Reset the counters of the current allowance window",
        response_model=ResetDocument,
        responses=CHANGES,
    )
    async def reset_usage(
        body: UsageReset, once: Annotated[Once, require_idempotent(OPERATE, operators=True)]
    ) -> Response:
        require_resource(once.context, SubscriptionConfig)

        async def act(tx: Tx) -> ResetDocument:
            await _current_usage(tx, body.account_id)
            done = await usage.reset(tx, body.account_id, body.feature_name, once.caller.holder, body.note)
            return ResetDocument(account_id=body.account_id, reset=done)

        return await once.answer(act)


def _read(body: bytes) -> _EventBody:
    try:
        event = _decode(body)
    except msgspec.ValidationError as error:
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, f"body: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Problem(HTTPStatus.BAD_REQUEST, f"the body is not valid JSON: {error}") from error
    refuse_repeated(body)
    if event.delta == 0:
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, "body: delta is 0, which counts nothing; omit it for 1")
    return event


async def _current_usage(read: usage.Reads, account_id: str) -> usage.CurrentUsage:
    found = await usage.current_usage(read, account_id)
    if found is None:
        raise not_found(f"subscription of account {account_id!r} that has not ended")
    return found


def _feature(found: usage.FeatureUse) -> FeatureDocument:
    return FeatureDocument(feature_name=found.feature, used=found.used, limit=found.limit, left=found.left)


def _over_limit(request: Request, refusal: UsageRefused) -> Response:
    """A problem document with the remaining allowance in numbers."""
    assert refusal.used is not None
    body = {
        "type": LIMIT_REACHED,
        "title": refusal.status.phrase,
        "status": int(refusal.status),
        "detail": str(refusal),
        "instance": request.url.path,
        "trace_id": trace_of(request),
        "used": refusal.used,
        "limit": refusal.limit,
        "left": usage.left(refusal.limit, refusal.used),
    }
    return Response(_encode(body), status_code=refusal.status, media_type=MEDIA_TYPE)
