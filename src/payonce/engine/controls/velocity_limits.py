"""Velocity limits: the amount of an asset that may leave within a window of time, optionally per vendor.

An effect counts from the intent of its first send, unless it is known not to have happened. A replay is never held
back: it was counted already, and it is how the outcome is found out.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from payonce.engine.audit import Severity, note
from payonce.engine.controls import texts
from payonce.engine.effects.send import Sending
from payonce.engine.messages.transaction import Reader, Tx
from payonce.engine.monitoring import metrics
from payonce.kit.money import Amount, Asset
from payonce.kit.outcomes import Held, Invalid

WINDOW_DEFAULT_S: Final = 3_600
WINDOW_MAX_S: Final = 31 * 86_400
LOOK_MAX_S: Final = 300.0
"""A held message is retried at least this often: the limit may have been raised, or an effect refused meanwhile."""


@dataclass(frozen=True)
class Limit:
    id: int
    most: Amount
    window_s: int
    vendor: str | None
    set_by: str
    set_at: datetime

    @property
    def what(self) -> str:
        of_vendor = "" if self.vendor is None else f" through {self.vendor}"
        return f"{self.most} in {self.window_s:,} s{of_vendor}"


@dataclass(frozen=True)
class LimitUsage:
    """A limit and the amount currently used within its window."""

    limit: Limit
    used: Amount


async def set_limit(
    tx: Tx, most: Amount, by: str, *, window_s: int = WINDOW_DEFAULT_S, vendor: str | None = None
) -> Limit:
    """Sets or changes the limit of an asset, window and vendor. Sends made before it was set count as well."""
    if most.minor < 0:
        raise Invalid(f"the limit is {most}; it must be 0 or more")
    if not 1 <= window_s <= WINDOW_MAX_S:
        raise Invalid(f"the window is {window_s} s; it must be between 1 and {WINDOW_MAX_S:,}")
    by, vendor = texts.name(by, "by"), None if vendor is None else texts.name(vendor, "vendor")
    row = await tx.fetchrow(
        """
        insert into payonce.velocity_limits as l (asset, exponent, vendor, window_s, most_minor, set_by)
        values ($1, $2, $3, $4, $5, $6)
        on conflict on constraint velocity_limits_once
        do update set most_minor = excluded.most_minor, set_by = excluded.set_by, set_at = payonce.due_now()
        returning *
        """,
        most.asset.code,
        most.asset.exponent,
        vendor,
        window_s,
        most.minor,
        by,
    )
    created = _as_limit(row)
    await note(
        tx.connection,
        "brakes.limit",
        f"limit {created.id}",
        f"set a limit of {created.what}",
        actor=by,
        severity=Severity.WARNING,
    )
    return created


async def remove_limit(tx: Tx, limit_id: int, by: str) -> Limit:
    by = texts.name(by, "by")
    row = await tx.fetchrow("delete from payonce.velocity_limits where id = $1 returning *", limit_id)
    if row is None:
        raise Invalid(f"there is no limit {limit_id}; see: payonce limits list")
    removed = _as_limit(row)
    await note(
        tx.connection,
        "brakes.limit",
        f"limit {limit_id}",
        f"removed the limit of {removed.what}",
        actor=by,
        severity=Severity.WARNING,
    )
    return removed


async def limits(read: Reader | Tx) -> list[LimitUsage]:
    rows = await read.fetch("select * from payonce.velocity_limits order by asset, exponent, vendor, window_s")
    found = [_as_limit(row) for row in rows]
    return [LimitUsage(limit, Amount(await _used_minor(read, limit, None), limit.most.asset)) for limit in found]


async def check_limits(tx: Tx, sending: Sending) -> None:
    """Runs in the intent transaction. Locks the rows of the limits, in id order, until it ends, so that two intents
    that fit only one at a time follow one another."""
    if not sending.amount or sending.replay:
        return
    amount = sending.amount
    rows = await tx.fetch(
        """
        select * from payonce.velocity_limits
        where asset = $1 and exponent = $2 and (vendor is null or vendor = $3) order by id for update
        """,
        amount.asset.code,
        amount.asset.exponent,
        sending.vendor,
    )
    for limit in map(_as_limit, rows):
        if amount > limit.most:
            metrics.HELD.labels("above_limit").inc()
            raise Held(
                f"{amount} alone exceeds limit {limit.id} ({limit.what}); raise the limit if this may pass",
                LOOK_MAX_S,
            )
        used = Amount(await _used_minor(tx, limit, sending.effect_id), amount.asset)
        if used + amount > limit.most:
            after_s = await _room_after_s(tx, limit, sending.effect_id, used + amount - limit.most)
            metrics.HELD.labels("limit").inc()
            raise Held(
                f"{amount} on top of {used} exceeds limit {limit.id} ({limit.what}); there is room in {after_s:,.0f} s",
                min(after_s, LOOK_MAX_S),
            )


# For limit $1 to $4 (asset, exponent, window, vendor), without effect $5, the one being checked.
_COUNTED: Final = """
    from payonce.effects
    where asset = $1 and exponent = $2 and first_attempt_at > payonce.due_now() - make_interval(secs => $3)
      and ($4::text is null or vendor = $4) and ($5::uuid is null or id <> $5)
      and state in ('intended', 'unknown', 'review', 'performed')"""


async def _used_minor(read: Reader | Tx, limit: Limit, asking: UUID | None) -> int:
    return int(await read.fetchval(f"select coalesce(sum(amount_minor), 0) {_COUNTED}", *_arguments(limit, asking)))


async def _room_after_s(tx: Tx, limit: Limit, asking: UUID | None, missing: Amount) -> float:
    """Seconds until enough has left the window, oldest first."""
    after_s = await tx.fetchval(
        f"""
        select extract(epoch from min(first_attempt_at) + make_interval(secs => $3) - payonce.due_now())::float8
        from (
            select first_attempt_at, sum(amount_minor) over (order by first_attempt_at, id) as freed {_COUNTED}
        ) leaving where freed >= $6
        """,
        *_arguments(limit, asking),
        missing.minor,
    )
    return max(0.0, float(after_s or 0.0))


def _arguments(limit: Limit, asking: UUID | None) -> tuple[Any, ...]:
    return limit.most.asset.code, limit.most.asset.exponent, limit.window_s, limit.vendor, asking


def _as_limit(row: Any) -> Limit:
    most = Amount(int(row["most_minor"]), Asset(row["asset"], row["exponent"]))
    return Limit(row["id"], most, row["window_s"], row["vendor"], row["set_by"], row["set_at"])
