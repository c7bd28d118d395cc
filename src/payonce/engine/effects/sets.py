"""The two writes that every effect comes to, for as many effects as there are at once."""

from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

from payonce.engine.database import Connection
from payonce.engine.effects.model import Event


class New(NamedTuple):
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


async def insert_all(connection: Connection, effects: Sequence[New]) -> list[Any]:
    """The row of each; None for one that another run was quicker with, or whose scope is taken."""
    rows = await connection.fetch(
        """
        with new as (
            select * from unnest(
                $1::uuid[], $2::text[], $3::text[], $4::integer[], $5::integer[], $6::text[], $7::text[], $8::text[],
                $9::uuid[], $10::text[], $11::float8[], $12::float8[], $13::text[], $14::text[], $15::text[],
                $16::smallint[], $17::numeric[], $18::float8[], $19::bigint[], $20::text[])
            as new (id, kind, key, generation, version, safety, scope, request, message_id, trace_id, timeout_s,
                    valid_for_s, service, tenant, asset, exponent, amount_minor, horizon_s, token, identity)
        ), made as (
            insert into payonce.effects (
                id, kind, key, generation, version, safety, scope, request, message_id, trace_id, first_attempt_at,
                sent_until, busy_until, key_valid_until, service, tenant, asset, exponent, amount_minor, horizon_s,
                identity)
            select id, kind, key, generation, version, safety, scope, request::json, message_id, trace_id,
                payonce.due_now(), payonce.due_now() + make_interval(secs => timeout_s),
                payonce.due_now() + make_interval(secs => timeout_s),
                payonce.due_now() + make_interval(secs => valid_for_s), service, tenant, asset, exponent, amount_minor,
                horizon_s, identity::json
            from new
            where not exists (
                select from payonce.effects other
                where other.scope = new.scope and other.state in ('intended', 'unknown', 'review'))
            on conflict (kind, key, generation) do nothing
            returning *, payonce.due_now() as now
        ), told as (
            insert into payonce.effect_attempts (effect_id, attempt, event, message_id, token)
            select made.id, made.attempt, $21, made.message_id, new.token from made join new on new.id = made.id
        )
        select * from made
        """,
        *map(list, zip(*effects, strict=True)), Event.STARTED,
    )  # fmt: skip
    made = {row["id"]: row for row in rows}
    return [made.get(effect.id) for effect in effects]


class Performed(NamedTuple):
    id: UUID
    attempt: int
    outcome: str | None
    vendor_ref: str | None
    detail: str | None
    message_id: UUID | None
    token: int | None


async def record_all(connection: Connection, performed: Sequence[Performed]) -> list[Any]:
    """The row of each as it is now; None for one that is not as it was begun."""
    rows = await connection.fetch(
        """
        with said as (
            select * from unnest(
                $1::uuid[], $2::integer[], $3::text[], $4::text[], $5::text[], $6::uuid[], $7::bigint[])
            as said (id, attempt, outcome, vendor_ref, detail, message_id, token)
        ), ended as (
            update payonce.effects e
            set state = 'performed', revision = e.revision + 1, updated_at = payonce.due_now(),
                outcome = said.outcome::json, vendor_ref = coalesce(said.vendor_ref, e.vendor_ref), busy_until = null
            -- The column as it is would lead the planner to the index of all open effects, to walk it for each; and the
            -- join alone to all there are, where the table was analysed while empty.
            from said where e.id = any($1::uuid[]) and e.id = said.id and e.attempt = said.attempt
              and e.state || '' = 'intended'
            returning e.*, payonce.due_now() as now
        ), told as (
            insert into payonce.effect_attempts (
                effect_id, attempt, event, detail, outcome, vendor_ref, message_id, token)
            select said.id, said.attempt, $8, said.detail, said.outcome::json, said.vendor_ref, said.message_id,
                said.token
            from ended join said on said.id = ended.id and said.attempt = ended.attempt
        )
        select * from ended
        """,
        *map(list, zip(*performed, strict=True)), Event.PERFORMED,
    )  # fmt: skip
    # By attempt too: what an earlier try came to may be among them, and has to be held against this one.
    ended = {(row["id"], row["attempt"]): row for row in rows}
    return [ended.get((each.id, each.attempt)) for each in performed]
