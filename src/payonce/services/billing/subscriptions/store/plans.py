"""Plans and their versions. A sold version never changes; a new price is a new version."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from fractions import Fraction
from typing import Any, Final

import asyncpg

from payonce.engine.messages.transaction import Reader, Tx
from payonce.kit.money import Amount, Asset
from payonce.kit.outcomes import Invalid
from payonce.services.billing.subscriptions.domain import allowance
from payonce.services.billing.subscriptions.domain.calendar import Interval, Unit
from payonce.services.billing.subscriptions.domain.refusals import Conflict, NotFound
from payonce.services.billing.subscriptions.model import AfterDunning, Plan

LISTED_MAX: Final = 200
FEATURES_MAX: Final = 100
DAYS_OF: Final = {
    Unit.DAY: Fraction(1),
    Unit.WEEK: Fraction(7),
    Unit.MONTH: Fraction(365, 12),
    Unit.YEAR: Fraction(365),
}
"""Only used to compare the prices of two plans."""


@dataclass(frozen=True)
class Offer:
    """A plan version to be sold."""

    code: str
    name: str
    price: Amount
    interval: Interval
    features: Mapping[str, int | None] = field(default_factory=dict)
    allowance: Interval | None = None
    """How often the limits reset. None keeps the previous version's interval if the billing interval is the same, and
    otherwise means every billing period."""
    after_dunning: AfterDunning = AfterDunning.UNPAID
    trial_days: int | None = None
    renews_to: str | None = None


async def for_sale(read: Reader | Tx) -> list[Plan]:
    """The current versions, cheapest first."""
    rows = await read.fetch(
        "select * from subscriptions.plans where retired_at is null order by price_minor, code limit $1", LISTED_MAX
    )
    return [plan_from(row) for row in rows]


async def find(read: Reader | Tx, plan_id: str) -> Plan | None:
    """By the id of a version, or by a code for its current version."""
    row = await read.fetchrow(
        """
        select * from subscriptions.plans where id = $1 or (code = $1 and retired_at is null) order by id = $1 desc
        limit 1
        """,
        plan_id,
    )
    return None if row is None else plan_from(row)


async def for_sale_at(read: Reader | Tx, code: str, at: datetime) -> Plan | None:
    """The non-trial version that was for sale at a time of the database's clock, or the next one."""
    row = await read.fetchrow(
        """
        select * from subscriptions.plans
        where code = $1 and trial_days is null and (retired_at is null or retired_at > $2)
        order by version limit 1
        """,
        code,
        at,
    )
    return None if row is None else plan_from(row)


async def plan(read: Reader | Tx, plan_id: str) -> Plan:
    """An existing version. Raises NotFound."""
    found = await find(read, plan_id)
    if found is None:
        raise NotFound(f"there is no plan {plan_id!r}; GET /v1/plans lists them")
    return found


async def plan_for_sale(read: Reader | Tx, plan_id: str, *, trial: bool = False) -> Plan:
    """A version that can be subscribed to now. Raises NotFound, or Conflict for a retired one and for mixing up trials
    and plans."""
    found = await plan(read, plan_id)
    if found.retired_at is not None:
        raise Conflict(f"plan {found.id} is no longer for sale; take the current version of {found.code}, if any")
    if trial and found.trial_days is None:
        raise Conflict(f"plan {found.id} is not a trial; subscribe to it without one")
    if not trial and found.trial_days is not None:
        raise Conflict(f"plan {found.id} is a trial; begin it as one with POST /v1/subscriptions/trial")
    return found


async def add_version(tx: Tx, offer: Offer) -> Plan:
    """Puts a version on sale and retires its predecessor, which existing subscriptions keep."""
    _check(offer)
    if offer.renews_to is not None:
        await plan_for_sale(tx, offer.renews_to)
    await tx.execute("select pg_advisory_xact_lock(hashtextextended('billing plan ' || $1, 0))", offer.code)
    await tx.execute(
        "update subscriptions.plans set retired_at = payonce.due_now() where code = $1 and retired_at is null",
        offer.code,
    )
    limits = offer.allowance or await _allowance_before(tx, offer)
    try:
        row = await tx.fetchrow(
            """
            insert into subscriptions.plans (id, code, version, name, price_minor, currency, exponent, interval_unit,
                interval_count, trial_days, renews_to, features, after_dunning, allowance_unit, allowance_count)
            select $1 || '-v' || next, $1, next, $2, $3, $4, $5, $6, $7, $8, $9, $10::jsonb, $11, $12, $13
            from (select coalesce(max(version), 0) + 1 as next from subscriptions.plans where code = $1) versions
            returning *
            """,
            offer.code,
            offer.name,
            offer.price.minor,
            offer.price.asset.code,
            offer.price.asset.exponent,
            offer.interval.unit,
            offer.interval.count,
            offer.trial_days,
            offer.renews_to,
            json.dumps(dict(offer.features)),
            offer.after_dunning,
            None if limits is None else limits.unit,
            None if limits is None else limits.count,
        )
    except asyncpg.CheckViolationError as error:
        raise Invalid(f"the plan {offer.code!r} is invalid: {error.constraint_name} is violated") from error
    return plan_from(row)


async def retire(tx: Tx, plan_id: str) -> Plan:
    """Stops selling a version. Existing subscriptions keep it and renew as before."""
    found = await plan(tx, plan_id)
    if found.retired_at is not None:
        return found
    waiting = await tx.fetchval(
        "select code from subscriptions.plans where renews_to = $1 and retired_at is null limit 1", found.code
    )
    if waiting is not None:
        raise Conflict(
            f"the trial {waiting} converts to {found.code}: retire that trial first, or let it convert to another plan"
        )
    row = await tx.fetchrow(
        """
        update subscriptions.plans set retired_at = payonce.due_now() where id = $1 and retired_at is null returning *
        """,
        found.id,
    )
    return await plan(tx, found.id) if row is None else plan_from(row)


def is_dearer(plan: Plan, than: Plan) -> bool:
    """Compares the prices per day: a year for the price of ten months is cheaper."""
    return _per_day(plan) > _per_day(than)


def interval_of(plan: Plan) -> Interval:
    """The length of its periods; for a trial, of the trial."""
    if plan.trial_days is not None:
        return Interval(Unit.DAY, plan.trial_days)
    return Interval(Unit(plan.interval_unit), plan.interval_count)


def allowance_of(plan: Plan) -> Interval | None:
    """How often its limits reset; None if at every period."""
    if plan.allowance_unit is None or plan.allowance_count is None:
        return None
    found = Interval(Unit(plan.allowance_unit), plan.allowance_count)
    return None if found == interval_of(plan) else found


def terms_of(plan: Plan, than: Plan) -> dict[str, Any]:
    """Billing interval, reset interval, and the limits that differ from another version's; a missing feature is not
    included, and null is unlimited."""
    billed, allowed = interval_of(plan), allowance_of(plan) or interval_of(plan)
    return {
        "interval": billed.unit.value,
        "interval_count": billed.count,
        "allowance_interval": allowed.unit.value,
        "allowance_interval_count": allowed.count,
        "features": {
            name: limit
            for name, limit in sorted(plan.features.items())
            if name not in than.features or than.features[name] != limit
        },
    }


def plan_from(row: Any) -> Plan:
    features = row["features"]
    return Plan(
        id=row["id"],
        code=row["code"],
        version=row["version"],
        name=row["name"],
        price=Amount(row["price_minor"], Asset(row["currency"], row["exponent"])),
        interval_unit=row["interval_unit"],
        interval_count=row["interval_count"],
        trial_days=row["trial_days"],
        renews_to=row["renews_to"],
        features=json.loads(features) if isinstance(features, str) else features,
        allowance_unit=row["allowance_unit"],
        allowance_count=row["allowance_count"],
        after_dunning=AfterDunning(row["after_dunning"]),
        retired_at=row["retired_at"],
        created_at=row["created_at"],
    )


async def _allowance_before(tx: Tx, offer: Offer) -> Interval | None:
    """The previous version's reset interval: a new price must not turn monthly limits into yearly ones."""
    row = await tx.fetchrow(
        "select * from subscriptions.plans where code = $1 order by version desc limit 1", offer.code
    )
    if row is None:
        return None
    before = plan_from(row)
    return allowance_of(before) if interval_of(before) == _billed_every(offer) else None


def _billed_every(offer: Offer) -> Interval:
    return offer.interval if offer.trial_days is None else Interval(Unit.DAY, offer.trial_days)


def _per_day(plan: Plan) -> Fraction:
    return plan.price.minor / (DAYS_OF[Unit(plan.interval_unit)] * plan.interval_count)


def _check(offer: Offer) -> None:
    if len(offer.features) > FEATURES_MAX:
        raise Invalid(f"the plan has {len(offer.features)} features; name at most {FEATURES_MAX}")
    for name, limit in offer.features.items():
        if not 1 <= len(name) <= 100 or (limit is not None and (type(limit) is not int or limit < 0)):
            raise Invalid(f"the limit of feature {name[:100]!r} must be a whole number from 0, or null for none")
    if (offer.trial_days is None) != (offer.renews_to is None):
        raise Invalid("a trial needs its length and the plan that follows: give trial_days and renews_to")
    if offer.allowance is not None:
        allowance.check(_billed_every(offer), offer.allowance)
