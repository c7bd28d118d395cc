"""Webhook endpoints and deliveries over HTTP. A tenant sees only its own endpoints."""

from datetime import datetime
from typing import Annotated, Any, Final
from uuid import UUID

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Field

from payonce.app.process import App
from payonce.engine import webhooks
from payonce.engine.messages.transaction import Reader, Tx
from payonce.engine.webhooks import Delivery, DeliveryState, Endpoint, EndpointState
from payonce.engine.webhooks.model import DEFAULT_TENANT, DESCRIPTION_MAX_CHARS, EVENTS_MAX, TYPE_MAX_CHARS
from payonce.engine.webhooks.registry import OVERLAP_MAX_S
from payonce.http.kit.auth import Caller, require
from payonce.http.kit.context import Trace
from payonce.http.kit.problems import not_found, responses
from payonce.http.kit.scopes import WEBHOOKS_READ, WEBHOOKS_WRITE
from payonce.http.kit.values import NO_CONTROLS, PAGE_DEFAULT, Limit, Moment, Name, Note, RequestBody
from payonce.kit.crypto import Keyring
from payonce.kit.outcomes import Invalid, Unavailable

READ: Final = responses(400, 401, 403, 404, 422, 429, 503)
WRITE: Final = responses(400, 401, 403, 404, 409, 413, 422, 429, 503)
URL_MAX_CHARS: Final = 2_000

Viewer = Annotated[Caller, require(WEBHOOKS_READ, tenants=True)]
Writer = Annotated[Caller, require(WEBHOOKS_WRITE, tenants=True)]
Id = Annotated[UUID, Path()]


class EndpointDocument(BaseModel):
    """Omits the path of the URL, where many receivers keep a secret."""

    id: UUID
    tenant: str
    place: str = Field(description="The origin of the URL.")
    events: list[str]
    description: str
    state: EndpointState
    reason: str | None = Field(description="Why the endpoint is not enabled.")
    changed_at: datetime
    failing_since: datetime | None
    created_by: str
    created_at: datetime


class CreatedEndpoint(EndpointDocument):
    secret: str = Field(description="Returned only once.")


class EndpointPage(BaseModel):
    endpoints: list[EndpointDocument]
    next_before: UUID | None


class RotatedSecret(BaseModel):
    endpoint: UUID
    secret: str = Field(description="Returned only once.")
    overlap_s: int


class AttemptDocument(BaseModel):
    number: int
    at: datetime
    status: int | None
    latency_ms: int
    error: str | None
    excerpt: str | None


class DeliveryDocument(BaseModel):
    id: UUID
    event_id: str
    type: str
    endpoint_id: UUID
    state: DeliveryState
    reason: str | None
    attempts: int
    last_status: int | None
    replay_of: UUID | None
    created_at: datetime
    ended_at: datetime | None
    trace_id: str | None


class DeliveryTimeline(DeliveryDocument):
    tries: list[AttemptDocument]


class DeliveryPage(BaseModel):
    deliveries: list[DeliveryDocument]
    next_before: UUID | None


class Replayed(BaseModel):
    delivery: UUID
    replay_of: UUID


class NewEndpoint(RequestBody):
    url: str = Field(min_length=1, max_length=URL_MAX_CHARS, pattern=NO_CONTROLS)
    events: list[Annotated[str, Field(min_length=1, max_length=TYPE_MAX_CHARS + 2)]] = Field(
        min_length=1, max_length=EVENTS_MAX, description="Event types, prefixes such as `invoice.*`, or `*`."
    )
    description: str = Field("", max_length=DESCRIPTION_MAX_CHARS, pattern=NO_CONTROLS)
    tenant: Name | None = Field(
        None, description="Only for keys without a tenant; a tenant's key adds endpoints of its own tenant."
    )


class Reason(RequestBody):
    reason: Note


class Rotation(RequestBody):
    overlap_s: int = Field(
        webhooks.OVERLAP_S, ge=0, le=OVERLAP_MAX_S, description="How long previous secrets keep signing."
    )


def webhook_routes(app: App) -> APIRouter:
    routes = APIRouter(prefix="/v1/webhooks")
    endpoints, deliveries = APIRouter(tags=["webhooks"]), APIRouter(tags=["deliveries"])
    _endpoint_routes(app, endpoints)
    _state_routes(app, endpoints)
    _delivery_routes(app, deliveries)
    routes.include_router(endpoints)
    routes.include_router(deliveries)
    return routes


def _endpoint_routes(app: App, routes: APIRouter) -> None:
    @routes.get("/endpoints", summary="List webhook endpoints, newest first", responses=READ)
    async def list_endpoints(
        caller: Viewer,
        state: EndpointState | None = None,
        limit: Limit = PAGE_DEFAULT,
        before: Annotated[UUID | None, Query(description="The last endpoint id of the previous page.")] = None,
    ) -> EndpointPage:
        found = await webhooks.endpoints(app.read, tenant=caller.tenant, state=state, before=before, limit=limit)
        following = found[-1].id if len(found) == limit else None
        return EndpointPage(endpoints=[_document(each) for each in found], next_before=following)

    @routes.get("/endpoints/{endpoint_id}", summary="Show a webhook endpoint", responses=READ)
    async def show_endpoint(endpoint_id: Id, caller: Viewer) -> EndpointDocument:
        return _document(await _own_endpoint(app.read, endpoint_id, caller))

    @routes.post("/endpoints", status_code=201, summary="Add a webhook endpoint", responses=WRITE)
    async def add_endpoint(body: NewEndpoint, caller: Writer, trace_id: Trace) -> CreatedEndpoint:
        if caller.tenant is not None and body.tenant not in (None, caller.tenant):
            raise Invalid(f"a key of tenant {caller.tenant} adds endpoints of that tenant only; omit tenant")
        async with app.begin(trace_id) as tx:
            made, secret = await webhooks.add_endpoint(
                tx,
                _keyring(app),
                url=body.url,
                events=body.events,
                by=caller.holder,
                tenant=caller.tenant or body.tenant or DEFAULT_TENANT,
                description=body.description,
                allow_private=app.settings.webhook_private,
            )
        return CreatedEndpoint(**_document(made).model_dump(), secret=secret.reveal())


def _state_routes(app: App, routes: APIRouter) -> None:
    @routes.post("/endpoints/{endpoint_id}/disable", summary="Disable a webhook endpoint", responses=WRITE)
    async def disable_endpoint(endpoint_id: Id, body: Reason, caller: Writer, trace_id: Trace) -> EndpointDocument:
        async with app.begin(trace_id) as tx:
            await _own_endpoint(tx, endpoint_id, caller)
            return _document(await webhooks.disable_endpoint(tx, endpoint_id, by=caller.holder, reason=body.reason))

    @routes.post("/endpoints/{endpoint_id}/enable", summary="Enable a webhook endpoint", responses=WRITE)
    async def enable_endpoint(endpoint_id: Id, caller: Writer, trace_id: Trace) -> EndpointDocument:
        async with app.begin(trace_id) as tx:
            await _own_endpoint(tx, endpoint_id, caller)
            return _document(await webhooks.enable_endpoint(tx, endpoint_id, by=caller.holder))

    @routes.post(
        "/endpoints/{endpoint_id}/rotate",
        summary="Rotate the signing secret; previous secrets keep signing for a while",
        responses=WRITE,
    )
    async def rotate_secret(endpoint_id: Id, body: Rotation, caller: Writer, trace_id: Trace) -> RotatedSecret:
        async with app.begin(trace_id) as tx:
            await _own_endpoint(tx, endpoint_id, caller)
            secret = await webhooks.rotate_secret(
                tx, _keyring(app), endpoint_id, by=caller.holder, overlap_s=body.overlap_s
            )
        return RotatedSecret(endpoint=endpoint_id, secret=secret.reveal(), overlap_s=body.overlap_s)


def _delivery_routes(app: App, routes: APIRouter) -> None:
    @routes.get(
        "/endpoints/{endpoint_id}/deliveries", summary="List deliveries to an endpoint, newest first", responses=READ
    )
    async def list_deliveries(
        endpoint_id: Id,
        caller: Viewer,
        event_id: Name | None = None,
        event_type: Name | None = None,
        state: DeliveryState | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
        limit: Limit = PAGE_DEFAULT,
        before: Annotated[UUID | None, Query(description="The last delivery id of the previous page.")] = None,
    ) -> DeliveryPage:
        await _own_endpoint(app.read, endpoint_id, caller)
        found = await webhooks.deliveries(
            app.read,
            endpoint_id=endpoint_id,
            event_id=event_id,
            event_type=event_type,
            state=state,
            since=since,
            until=until,
            before=before,
            limit=limit,
        )
        following = found[-1].id if len(found) == limit else None
        return DeliveryPage(
            deliveries=[DeliveryDocument(**_delivery_fields(each)) for each in found], next_before=following
        )

    @routes.get("/deliveries/{delivery_id}", summary="Show a delivery with its attempts", responses=READ)
    async def show_delivery(delivery_id: Id, caller: Viewer) -> DeliveryTimeline:
        found = await _own_delivery(app.read, delivery_id, caller)
        tries = [
            AttemptDocument(
                number=each.number,
                at=each.at,
                status=each.status,
                latency_ms=each.latency_ms,
                error=each.error,
                excerpt=each.excerpt,
            )
            for each in await webhooks.attempts(app.read, delivery_id)
        ]
        return DeliveryTimeline(**_delivery_fields(found), tries=tries)

    @routes.post("/deliveries/{delivery_id}/replay", summary="Deliver the same event again", responses=WRITE)
    async def replay_delivery(delivery_id: Id, body: Reason, caller: Writer, trace_id: Trace) -> Replayed:
        async with app.begin(trace_id) as tx:
            await _own_delivery(tx, delivery_id, caller)
            made = await webhooks.replay(tx, delivery_id, by=caller.holder, why=body.reason)
        return Replayed(delivery=made, replay_of=delivery_id)


async def _own_endpoint(read: Reader | Tx, endpoint_id: UUID, caller: Caller) -> Endpoint:
    """Raises 404 for another tenant's endpoint as for a missing one."""
    known = await read.fetchval(
        "select exists (select from payonce.webhook_endpoints where id = $1 and ($2::text is null or tenant = $2))",
        endpoint_id,
        caller.tenant,
    )
    if not known:
        raise not_found(f"endpoint {endpoint_id}")
    return await webhooks.endpoint(read, endpoint_id)


async def _own_delivery(read: Reader | Tx, delivery_id: UUID, caller: Caller) -> Delivery:
    try:
        found = await webhooks.delivery(read, delivery_id)
    except Invalid:
        raise not_found(f"delivery {delivery_id}") from None
    if caller.tenant not in (None, found.tenant):
        raise not_found(f"delivery {delivery_id}")
    return found


def _keyring(app: App) -> Keyring:
    keys = app.settings.keyring()
    if keys is None:
        raise Unavailable("this process has no encryption keys for secrets; set PAYONCE_KEYS")
    return keys


def _document(found: Endpoint) -> EndpointDocument:
    names = EndpointDocument.model_fields.keys() - {"place", "events"}
    same = {name: getattr(found, name) for name in names}
    return EndpointDocument(**same, place=found.origin, events=list(found.events))


def _delivery_fields(found: Delivery) -> dict[str, Any]:
    return {name: getattr(found, name) for name in DeliveryDocument.model_fields}
