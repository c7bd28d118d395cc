"""Freezes: until a freeze ends or is lifted, no matching send can commit its intent, even for messages already claimed.

Freezes stop sends only. Earlier sends are still recorded and resolved: a control must not make us forget money. A send
whose intent was committed before the freeze may still go out until its time-out ends. Such sends are listed, and can be
waited for.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from typing import Any, Final

import asyncpg

from payonce.engine.audit import Severity, note
from payonce.engine.controls import texts
from payonce.engine.effects.send import Sending
from payonce.engine.messages.transaction import Reader, Tx
from payonce.engine.monitoring import metrics
from payonce.kit.money import WELL_KNOWN_CODES, Amount, Asset
from payonce.kit.outcomes import Held, Invalid, Unavailable

LOCK_KEY: Final = 0x667265657A65
"""'freeze' in ASCII, as in payonce.freeze_on(). Intents take the lock shared, a freeze takes it exclusively."""
LOCK_WAIT_S: Final = 30
"""Longer than a process stopped inside its intent transaction can keep it open with a lease of one minute."""
LOOK_S: Final = 60.0
"""How often a frozen message is retried, and so the longest delay after a lift."""
LISTED_MAX: Final = 500
QUIET_WAIT_MAX_S: Final = 120.0
"""The longest wait of wait_until_quiet(); it returns the sends still in flight then."""
QUIET_LOOK_S: Final = 0.1


@dataclass(frozen=True)
class SendsInFlight:
    """Sends whose intent was committed before a freeze and which may still begin or end at the vendor."""

    count: int = 0
    amounts: Sequence[Amount] = ()
    """One per asset."""
    until: datetime | None = None
    """When the last of their time-outs ends: none of them begins after it."""
    rest_s: float = 0.0
    """Seconds until then, by the store's clock."""

    def __bool__(self) -> bool:
        return self.count > 0

    def __str__(self) -> str:
        amounts = f" ({', '.join(map(str, self.amounts))})" if self.amounts else ""
        ends = "" if self.until is None else f", the last until {self.until.isoformat(timespec='seconds')}"
        return f"{self.count:,} begun before{amounts}{ends}"


@dataclass(frozen=True)
class Freeze:
    """One freeze. All given conditions must match; a freeze without conditions stops everything."""

    id: int
    vendor: str | None
    asset: str | None
    tenant: str | None
    service: str | None
    reason: str
    frozen_by: str
    frozen_at: datetime
    until: datetime | None
    lifted_by: str | None
    lifted_at: datetime | None
    lifted_why: str | None
    in_force: bool
    under_way: SendsInFlight = field(default=SendsInFlight(), compare=False)
    """Sends in flight when the freeze was made; set only on the value that freeze() returns."""

    @property
    def what(self) -> str:
        """The stopped sends, in words."""
        conditions = [(name, getattr(self, name)) for name in ("vendor", "asset", "tenant", "service")]
        return ", ".join(f"{name} {value}" for name, value in conditions if value is not None) or "everything"


async def freeze(
    tx: Tx,
    *,
    by: str,
    reason: str,
    vendor: str | None = None,
    asset: str | None = None,
    tenant: str | None = None,
    service: str | None = None,
    everything: bool = False,
    until: datetime | None = None,
    for_s: float | None = None,
) -> Freeze:
    """Stops sends that match every given condition: no intent that commits after this transaction is sent.

    Waits for intents that are being written and holds back new ones meanwhile, so commit soon. Sends intended earlier
    may still be on their way to the vendor: `under_way` lists them, and wait_until_quiet() waits for them after the
    commit.
    """
    given = {"vendor": vendor, "asset": asset, "tenant": tenant, "service": service}
    conditions = {name: None if text is None else texts.name(text, name) for name, text in given.items()}
    if everything == any(text is not None for text in conditions.values()):
        raise Invalid("name what to freeze: a vendor, asset, tenant or service, or, without any of them, everything")
    by, reason = texts.name(by, "by"), texts.reason(reason)
    now: datetime = await tx.fetchval("select payonce.due_now()")
    if for_s is not None:
        until = now + timedelta(seconds=for_s)
    if until is not None and until <= now:
        raise Invalid(f"the freeze would end at {until.isoformat()}, which is in the past; it is {now.isoformat()}")
    await _take_lock(tx)
    row = await tx.fetchrow(
        """
        insert into payonce.freezes (everything, vendor, asset, tenant, service, reason, frozen_by, until)
        values ($1, $2, $3, $4, $5, $6, $7, $8)
        returning *, true as in_force
        """,
        everything,
        *conditions.values(),
        reason,
        by,
        until,
    )
    created = _as_freeze(row)
    created = replace(created, under_way=await sends_in_flight(tx, created))
    ends = "" if until is None else f" until {until.isoformat()}"
    text = f"froze {created.what}{ends}: {reason}" + (f"; {created.under_way}" if created.under_way else "")
    await note(tx.connection, "brakes.freeze", f"freeze {created.id}", text, actor=by, severity=Severity.WARNING)
    return created


async def sends_in_flight(read: Reader | Tx, frozen: Freeze) -> SendsInFlight:
    """Matching sends that may still go out. While the freeze is in force, their number only falls."""
    rows = await read.fetch(
        """
        select asset, exponent, sum(amount_minor) as minor, count(*) as count, max(busy_until) as until,
            extract(epoch from max(busy_until) - payonce.due_now())::float8 as rest_s
        from payonce.effects
        where state in ('intended', 'unknown', 'review') and busy_until > payonce.due_now()
          and ($1::text is null or vendor = $1) and ($2::text is null or asset = $2)
          and ($3::text is null or tenant = $3) and ($4::text is null or service = $4)
        group by asset, exponent order by asset, exponent
        """,
        frozen.vendor,
        frozen.asset,
        frozen.tenant,
        frozen.service,
    )
    if not rows:
        return SendsInFlight()
    amounts = [Amount(int(row["minor"]), Asset(row["asset"], row["exponent"])) for row in rows if row["asset"]]
    last = max(rows, key=lambda row: row["until"])
    return SendsInFlight(sum(row["count"] for row in rows), tuple(amounts), last["until"], last["rest_s"])


async def wait_until_quiet(read: Reader, frozen: Freeze, limit_s: float = QUIET_WAIT_MAX_S) -> SendsInFlight:
    """Waits until all sends begun before the freeze have ended or can no longer begin. Returns the sends that are left:
    none, unless the limit was reached first or the freeze was lifted."""
    give_up_at = time.monotonic() + limit_s
    while True:
        left = await sends_in_flight(read, frozen)
        if not left or time.monotonic() >= give_up_at:
            return left
        await asyncio.sleep(min(QUIET_LOOK_S, max(0.0, left.rest_s)))


async def lift(tx: Tx, freeze_id: int, by: str, why: str) -> Freeze:
    """Lifts the freeze; waiting messages continue within LOOK_S."""
    by, why = texts.name(by, "by"), texts.reason(why)
    row = await tx.fetchrow(
        """
        update payonce.freezes set lifted_by = $2, lifted_at = payonce.due_now(), lifted_why = $3
        where id = $1 and lifted_at is null
        returning *, false as in_force
        """,
        freeze_id,
        by,
        why,
    )
    if row is None:
        raise await _not_to_be_lifted(tx, freeze_id)
    lifted = _as_freeze(row)
    text = f"lifted the freeze of {lifted.what}: {why}"
    await note(tx.connection, "brakes.freeze", f"freeze {freeze_id}", text, actor=by, severity=Severity.WARNING)
    return lifted


async def freezes(
    read: Reader | Tx, *, ended: bool = False, limit: int = 100, before: int | None = None
) -> list[Freeze]:
    """Freezes in force, newest first; with `ended` also those that ended or were lifted. `before` is the last id of the
    previous page."""
    rows = await read.fetch(
        """
        select * from (
            select *, lifted_at is null and (until is null or until > payonce.due_now()) as in_force
            from payonce.freezes
        ) f where ($1 or in_force) and ($2::bigint is null or id < $2) order by id desc limit $3
        """,
        ended,
        before,
        min(limit, LISTED_MAX),
    )
    return [_as_freeze(row) for row in rows]


async def freeze_of(read: Reader | Tx, freeze_id: int) -> Freeze:
    """The freeze with this id, in force or not."""
    found = [each for each in await freezes(read, ended=True, limit=1, before=freeze_id + 1) if each.id == freeze_id]
    if not found:
        raise _no_such_freeze(freeze_id)
    return found[0]


async def check_asset(read: Reader | Tx, code: str) -> None:
    """Refuses an unknown asset: a freeze of it would stop nothing but look as if it did."""
    rows = await read.fetch("select asset from payonce.accounts union select asset from payonce.velocity_limits")
    known = WELL_KNOWN_CODES.union(row["asset"] for row in rows)
    if code in known or await read.fetchval("select exists (select from payonce.effects where asset = $1)", code):
        return
    alike = sorted(each for each in known if each.lower() == code.lower())
    hint = f"did you mean {' or '.join(alike)}?" if alike else f"known are: {', '.join(sorted(known))}"
    raise Invalid(f"there is no asset {code[:40]!r}; {hint}")


async def unknown_targets(read: Reader | Tx, vendor: str | None, asset: str | None) -> list[str]:
    """Warnings about a vendor or asset that no effect on record has: with a typo, a freeze would stop nothing but look
    as if it did."""
    doubts = []
    for name, text in (("vendor", vendor), ("asset", asset)):
        seen = f"select exists (select from payonce.effects where {name} = $1)"
        if text is not None and not await read.fetchval(seen, text):
            doubts.append(f"no effect on record has the {name} {text!r} so far; is it spelled correctly?")
    return doubts


async def check_freezes(tx: Tx, sending: Sending) -> None:
    """Runs in the intent transaction, before anything is sent. Raises Held while a freeze matches."""
    for tenant in dict.fromkeys((sending.tenant, *sending.others)):
        await _check_freezes_of(tx, sending, tenant)


async def _check_freezes_of(tx: Tx, sending: Sending, tenant: str | None) -> None:
    row = await tx.fetchrow(
        "select *, true as in_force, payonce.due_now() as now from payonce.freeze_on($1, $2, $3, $4)",
        sending.vendor,
        None if sending.amount is None else sending.amount.asset.code,
        tenant,
        sending.service,
    )
    if row is None:
        return
    found = _as_freeze(row)
    after_s = LOOK_S if found.until is None else min(LOOK_S, (found.until - row["now"]).total_seconds())
    metrics.HELD.labels("freeze").inc()
    raise Held(f"freeze {found.id} of {found.what} by {found.frozen_by}: {found.reason}", after_s)


async def _take_lock(tx: Tx) -> None:
    try:
        async with tx.connection.transaction():
            await tx.execute("select set_config('lock_timeout', $1, true)", f"{LOCK_WAIT_S}s")
            await tx.execute("select pg_advisory_xact_lock($1)", LOCK_KEY)
    except asyncpg.LockNotAvailableError as error:
        holders = await tx.fetchval(
            """
            select string_agg(pid::text, ', ' order by pid) from pg_locks
            where locktype = 'advisory' and granted and (classid::bigint << 32 | objid::bigint) = $1
            """,
            LOCK_KEY,
        )
        raise Unavailable(
            f"nothing is frozen yet: the database sessions {holders} have kept their intents open for "
            f"{LOCK_WAIT_S} s; freeze again, or end them with pg_terminate_backend() first"
        ) from error


async def _not_to_be_lifted(tx: Tx, freeze_id: int) -> Invalid:
    row = await tx.fetchrow("select lifted_by, lifted_at from payonce.freezes where id = $1", freeze_id)
    if row is None:
        return _no_such_freeze(freeze_id)
    return Invalid(f"freeze {freeze_id} was lifted by {row['lifted_by']} at {row['lifted_at'].isoformat()}")


def _no_such_freeze(freeze_id: int) -> Invalid:
    return Invalid(f"there is no freeze {freeze_id}; see: payonce freeze list --all")


def _as_freeze(row: Any) -> Freeze:
    return Freeze(**{each.name: row[each.name] for each in fields(Freeze) if each.name != "under_way"})
