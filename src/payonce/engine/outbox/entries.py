"""Puts entries into the outbox, in the transaction that they follow from."""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final
from uuid import UUID

from payonce.engine.database.connections import Connection, Database
from payonce.engine.messages.idempotency import TAKE_KEYS, keyed
from payonce.engine.messages.model import Message, check_message, encode_extra, encode_payloads
from payonce.engine.outbox.model import Relay, check_relay_name
from payonce.kit.log import get_logger
from payonce.kit.outcomes import Invalid

PUT_MAX_ENTRIES: Final = 100_000
"""A put is part of one transaction; a larger one would hold its locks and its snapshot for too long."""
STATEMENT_MAX_ENTRIES: Final = 1_000

log = get_logger(__name__)


async def declare_relays(database: Database, relays: Sequence[Relay]) -> None:
    """Declares relays to the store, which accepts entries only for declared relays. Settings of operators (paused)
    stay."""
    for relay in sorted(relays, key=attrgetter("name")):
        check_relay_name(relay.name)
        changed = await database.engine.fetchval(
            """
            insert into payonce.relays as known (name, keeps, ahead_s) values ($1, $2, $3)
            on conflict (name) do update set keeps = excluded.keeps, ahead_s = excluded.ahead_s
                where (known.keeps, known.ahead_s) is distinct from ($2, $3)
            returning xmax <> 0
            """,
            relay.name,
            relay.config.keeps,
            relay.config.ahead_s,
        )
        if changed:
            # Expected after a change of settings; logged because another process may still use the old config.
            log.warning("relay_changed", relay=relay.name, keeps=relay.config.keeps, ahead_s=relay.config.ahead_s)


async def put_out(connection: Connection, relay: str, messages: Sequence[Message]) -> list[UUID]:
    """Puts entries that exist if and only if the caller's transaction commits. Returns the messages' ids.

    An id already on its way to this relay is not put twice. Idempotency keys are passed on and have no effect here: a
    transaction puts each message once.
    """
    if len(messages) > PUT_MAX_ENTRIES:
        raise Invalid(f"{len(messages):,} entries in one put; put at most {PUT_MAX_ENTRIES:,} at a time")
    for message in messages:
        check_message(message)
    for start in range(0, len(messages), STATEMENT_MAX_ENTRIES):
        part = messages[start : start + STATEMENT_MAX_ENTRIES]
        known = await connection.fetchval(_PUT, relay, *_columns(part))
        if not known:
            raise await unknown_relay(connection, relay)
    return [message.id for message in messages]


async def put_once(connection: Connection, relay: str, messages: Sequence[Message]) -> set[UUID]:
    """Like put_out, but accepts each idempotency key only once, ever. Returns the ids that were put. For at most as
    many messages as one statement takes."""
    for message in messages:
        check_message(message)
    keys: list[list[Any]] = [list(column) for column in zip(*keyed(messages), strict=True)] or [[], [], []]
    row: Any = await connection.fetchrow(_PUT_ONCE, relay, *_columns(messages), *keys)
    if not row["known"]:
        raise await unknown_relay(connection, relay)
    fresh = set(row["fresh"])
    return {message.id for message in messages if message.idempotency_key is None or message.id in fresh}


async def unknown_relay(connection: Connection, relay: str) -> Invalid:
    names = [row["name"] for row in await connection.fetch("select name from payonce.relays order by name")]
    listed = f"known are: {', '.join(names)}" if names else "none is declared yet: start a service first"
    return Invalid(f"there is no relay {relay[:40]!r}; {listed}")


def _columns(messages: Sequence[Message]) -> list[list[Any]]:
    columns = [list(map(attrgetter(name), messages)) for name in _PLAIN_COLUMNS]
    return [*columns, encode_payloads(messages), [encode_extra(message) for message in messages]]


_PLAIN_COLUMNS: Final = (
    "id",
    "queue",
    "action",
    "correlation_id",
    "idempotency_key",
    "trace_id",
    "lane",
    "delay_s",
    "not_before",
    "created_at",
    "attempts",
    "max_attempts",
)

_INTO_OUTBOX: Final = """
    insert into payonce.outbox (
        relay, id, queue, action, correlation_id, idempotency_key, trace_id, lane, ready_at, try_at, created_at,
        attempts, max_attempts, payload, extra)
    select relays.name, id, queue, action, correlation_id, idempotency_key, trace_id, lane, due.at,
           due.at - make_interval(secs => relays.ahead_s), coalesce(created_at, payonce.due_now()), attempts,
           max_attempts, payload, extra
    from unnest(
        $2::uuid[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::float8[],
        $10::timestamptz[], $11::timestamptz[], $12::integer[], $13::integer[], $14::json[], $15::json[]
    ) as input (id, queue, action, correlation_id, idempotency_key, trace_id, lane, delay_s, not_before,
                created_at, attempts, max_attempts, payload, extra)
    cross join lateral (
        select greatest(payonce.due_now(), not_before) + make_interval(secs => delay_s) as at
    ) due
    join payonce.relays on relays.name = $1"""

# Returns whether the relay is known; entries were put only if it is.
_PUT: Final = f"""
    with entries as ({_INTO_OUTBOX} on conflict (relay, id) do nothing)
    select exists (select from payonce.relays where name = $1)"""

_KEYS: Final = (
    "unnest($16::text[], $17::text[], $18::uuid[]) with ordinality as keyed (queue, key, message_id, position)"
)

_PUT_ONCE: Final = f"""
    with fresh as ({TAKE_KEYS.format(keyed=_KEYS)}), entries as (
        {_INTO_OUTBOX} where idempotency_key is null or id in (select message_id from fresh)
        on conflict (relay, id) do nothing)
    select exists (select from payonce.relays where name = $1) as known, array(select message_id from fresh) as fresh"""
