"""The two writes of nearly every effect, each in one statement with its attempt."""

from typing import Any, NamedTuple
from uuid import UUID

from payonce.engine.database.connections import Connection
from payonce.engine.effects.model import Event


class NewEffect(NamedTuple):
    id: UUID
    kind: str
    key: str
    generation: int
    version: int
    safety: str
    scope: str | None
    request: str
    message_id: UUID
    trace_id: str
    timeout_s: float
    valid_for_s: float | None
    service: str
    tenant: str | None
    asset: str | None
    exponent: int | None
    amount_minor: int | None
    horizon_s: float | None
    token: int
    identity: str


async def insert(connection: Connection, new: NewEffect) -> Any:
    """The new row; None when another run was faster or the scope is taken."""
    return await connection.fetchrow(
        """
        with inserted as (
            insert into payonce.effects (
                id, kind, key, generation, version, safety, scope, request, message_id, trace_id, first_attempt_at,
                sent_until, busy_until, key_valid_until, service, tenant, asset, exponent, amount_minor, horizon_s,
                identity)
            select $1, $2, $3, $4, $5, $6, $7, $8::text::json, $9, $10, payonce.due_now(),
                payonce.due_now() + make_interval(secs => $11::float8),
                payonce.due_now() + make_interval(secs => $11::float8),
                payonce.due_now() + make_interval(secs => $12::float8), $13, $14, $15, $16, $17, $18, $20::text::json
            where not exists (
                select from payonce.effects other
                where other.scope = $7 and other.state in ('intended', 'unknown', 'review'))
            on conflict (kind, key, generation) do nothing
            returning *, payonce.due_now() as now
        ), recorded as (
            insert into payonce.effect_attempts (effect_id, attempt, event, message_id, token)
            select id, attempt, $21, message_id, $19 from inserted
        )
        select * from inserted
        """,
        *new,
        Event.STARTED,
    )


class PerformedAttempt(NamedTuple):
    id: UUID
    attempt: int
    outcome: str | None
    vendor_ref: str | None
    detail: str | None
    message_id: UUID | None
    token: int | None


async def record_performed(connection: Connection, performed: PerformedAttempt) -> Any:
    """The updated row; None when the effect has changed since the attempt began."""
    return await connection.fetchrow(
        """
        with ended as (
            update payonce.effects
            set state = 'performed', revision = revision + 1, updated_at = payonce.due_now(),
                outcome = $3::text::json, vendor_ref = coalesce($4, vendor_ref), busy_until = null
            -- The plain column would make the planner use the index of all open effects.
            where id = $1 and attempt = $2 and state || '' = 'intended'
            returning *, payonce.due_now() as now
        ), recorded as (
            insert into payonce.effect_attempts (
                effect_id, attempt, event, detail, outcome, vendor_ref, message_id, token)
            select id, attempt, $8, $5, $3::text::json, $4, $6, $7 from ended
        )
        select * from ended
        """,
        *performed,
        Event.PERFORMED,
    )
