"""The registry of endpoints: adding, disabling, enabling and removing them, and rotating their secrets; each with an
audit note."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final
from uuid import UUID

from payonce.engine.audit import Severity, note
from payonce.engine.controls import texts
from payonce.engine.messages.transaction import Reader, Tx
from payonce.engine.webhooks.model import (
    DEFAULT_TENANT,
    ENDPOINT_TRANSITIONS,
    ENDPOINTS_MAX,
    Endpoint,
    EndpointState,
    as_endpoint,
    checked_description,
    checked_filter,
    checked_tenant,
    checked_url,
)
from payonce.kit.ids import new_id
from payonce.kit.outcomes import Invalid
from payonce.kit.webhooks import Secret, new_secret
from payonce.kit.webhooks.signatures import SECRETS_MAX

if TYPE_CHECKING:
    from payonce.kit.crypto import Keyring

OVERLAP_S: Final = 24 * 3_600
"""How long a rotated secret keeps signing, by default."""
OVERLAP_MAX_S: Final = 30 * 86_400
PURPOSE: Final = "webhook endpoints"
"""The purpose for which keys are derived."""
LOCATION: Final = "webhooks.endpoint"
SEE: Final = "payonce webhooks endpoints list"


async def add_endpoint(
    tx: Tx,
    keys: "Keyring",
    *,
    url: str,
    events: Sequence[str],
    by: str,
    tenant: str = DEFAULT_TENANT,
    description: str = "",
    secret: Secret | None = None,
    allow_private: bool = False,
) -> tuple[Endpoint, Secret]:
    """The endpoint and its secret, which is shown only this once. Without a `secret`, one is generated."""
    by, secret = texts.name(by, "by"), secret or new_secret()
    values = (
        new_id(),
        checked_tenant(tenant),
        checked_url(url, allow_private=allow_private),
        checked_filter(events),
        checked_description(description),
        by,
    )
    # Serialised, so that concurrent additions count each other.
    await tx.execute("select pg_advisory_xact_lock(hashtextextended('webhook endpoints of ' || $1, 0))", tenant)
    count = await tx.fetchval(
        "select count(*) from payonce.webhook_endpoints where tenant = $1 and state <> 'removed'", tenant
    )
    if count >= ENDPOINTS_MAX:
        raise Invalid(f"tenant {tenant} has {count} endpoints, the maximum; remove one that is not used")
    row = await tx.fetchrow(
        """
        insert into payonce.webhook_endpoints (id, tenant, url, events, description, created_by)
        values ($1, $2, $3, $4, $5, $6) returning *
        """,
        *values,
    )
    created = as_endpoint(row)
    await _store_secret(tx, keys, created.id, 1, secret)
    await _note(tx, created, f"added for {', '.join(created.events)} of {tenant}", by)
    return created, secret


async def rotate_secret(
    tx: Tx, keys: "Keyring", endpoint_id: UUID, *, by: str, overlap_s: int = OVERLAP_S, secret: Secret | None = None
) -> Secret:
    """A new secret, shown only this once. Earlier secrets keep signing for `overlap_s`."""
    if not 0 <= overlap_s <= OVERLAP_MAX_S:
        raise Invalid(f"overlap_s is {overlap_s}; earlier secrets stay for 0 to {OVERLAP_MAX_S} seconds")
    by, secret = texts.name(by, "by"), secret or new_secret()
    found = await locked_endpoint(tx, endpoint_id)
    if found.state is EndpointState.REMOVED:
        raise Invalid(f"endpoint {endpoint_id} was removed; add a new one")
    number = await tx.fetchval("select max(number) from payonce.webhook_secrets where endpoint_id = $1", endpoint_id)
    await tx.execute(
        """
        update payonce.webhook_secrets
        set expires_at = least(expires_at, payonce.due_now() + make_interval(secs => $2))
        where endpoint_id = $1 and (expires_at is null or expires_at > payonce.due_now())
        """,
        endpoint_id,
        float(overlap_s),
    )
    await _store_secret(tx, keys, endpoint_id, number + 1, secret)
    in_force = await tx.fetchval(f"select count(*) from payonce.webhook_secrets where {IN_FORCE}", endpoint_id)
    if in_force > SECRETS_MAX:
        raise Invalid(
            f"endpoint {endpoint_id} has {in_force - 1} secrets in force; rotate with a shorter overlap, or later"
        )
    await _note(tx, found, f"secret {number + 1} created; earlier ones keep signing for {overlap_s} s", by)
    return secret


async def disable_endpoint(tx: Tx, endpoint_id: UUID, *, by: str, reason: str) -> Endpoint:
    """Nothing is sent to it from now on, including published events. Skipped deliveries can be replayed."""
    return await _move(tx, endpoint_id, EndpointState.DISABLED, by, texts.reason(reason))


async def enable_endpoint(tx: Tx, endpoint_id: UUID, *, by: str) -> Endpoint:
    return await _move(tx, endpoint_id, EndpointState.ENABLED, by, None)


async def remove_endpoint(tx: Tx, endpoint_id: UUID, *, by: str, reason: str) -> Endpoint:
    """Removes it for good. Its deliveries stay on record until they are pruned; its secrets are destroyed."""
    removed = await _move(tx, endpoint_id, EndpointState.REMOVED, by, texts.reason(reason))
    await tx.execute(
        """
        update payonce.webhook_secrets set sealed = '', expires_at = least(expires_at, payonce.due_now())
        where endpoint_id = $1
        """,
        endpoint_id,
    )
    return removed


async def endpoint(read: Reader | Tx, endpoint_id: UUID) -> Endpoint:
    row = await read.fetchrow("select * from payonce.webhook_endpoints where id = $1", endpoint_id)
    if row is None:
        raise Invalid(f"there is no endpoint {endpoint_id}; see: {SEE}")
    return as_endpoint(row)


async def locked_endpoint(tx: Tx, endpoint_id: UUID) -> Endpoint:
    row = await tx.fetchrow("select * from payonce.webhook_endpoints where id = $1 for no key update", endpoint_id)
    if row is None:
        raise Invalid(f"there is no endpoint {endpoint_id}; see: {SEE}")
    return as_endpoint(row)


IN_FORCE: Final = "endpoint_id = $1 and (expires_at is null or expires_at > payonce.due_now())"


async def secrets_in_force(read: Reader | Tx, keys: "Keyring", endpoint_id: UUID) -> list[Secret]:
    """The secrets in force, newest first. Raises Unopenable when they were sealed with other keys."""
    rows = await read.fetch(
        f"select sealed from payonce.webhook_secrets where {IN_FORCE} order by number desc", endpoint_id
    )
    return [Secret(keys.derive(PURPOSE).open(row["sealed"], _bound_to(endpoint_id)).decode()) for row in rows]


async def _store_secret(tx: Tx, keys: "Keyring", endpoint_id: UUID, number: int, secret: Secret) -> None:
    await tx.execute(
        "insert into payonce.webhook_secrets (endpoint_id, number, sealed) values ($1, $2, $3)",
        endpoint_id,
        number,
        keys.derive(PURPOSE).seal(secret.reveal().encode(), _bound_to(endpoint_id)),
    )


def _bound_to(endpoint_id: UUID) -> bytes:
    """A secret is sealed for its endpoint only: a row copied to another one signs nothing."""
    return endpoint_id.bytes


async def _move(tx: Tx, endpoint_id: UUID, to: EndpointState, by: str, reason: str | None) -> Endpoint:
    by = texts.name(by, "by")
    found = await locked_endpoint(tx, endpoint_id)
    if to not in ENDPOINT_TRANSITIONS[found.state]:
        already = f"is already {found.state}" if found.state is to else f"is {found.state}"
        raise Invalid(f"endpoint {endpoint_id} {already}: {found.reason or 'nothing is wrong with it'}")
    row = await tx.fetchrow(
        """
        update payonce.webhook_endpoints
        set state = $2, reason = $3, changed_at = payonce.due_now(), failing_since = null
        where id = $1 returning *
        """,
        endpoint_id,
        to,
        reason,
    )
    moved = as_endpoint(row)
    await _note(tx, moved, str(to) if reason is None else f"{to}: {reason}", by)
    return moved


async def _note(tx: Tx, about: Endpoint, text: str, by: str) -> None:
    severity = Severity.INFO if about.state is EndpointState.ENABLED else Severity.WARNING
    await note(tx.connection, LOCATION, f"endpoint {about.id}", f"{about.origin} {text}", actor=by, severity=severity)
