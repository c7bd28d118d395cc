"""Usage: events are counted once, against the plan's limits in the current allowance window.

The window is the billing period, or a part of it if the plan says so (allowance.py). `period_start` and `period_end` in
this module are the window's.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from fractions import Fraction
from http import HTTPStatus
from typing import Any, Final, Protocol

from payonce.engine.messages.transaction import Tx
from payonce.kit.ids import new_id
from payonce.kit.outcomes import PayonceError
from payonce.services.billing.subscriptions.model import ENTITLED, State, Subscription

DELTA_MAX: Final = 1_000_000_000
"""Per event, in either direction: far below the range of a counter."""
FEATURE_MAX_LENGTH: Final = 100
EVENT_ID_MAX_LENGTH: Final = 200
PERIODS_SHOWN_MAX: Final = 500


class Reads(Protocol):
    """A Reader, whose statements each commit, or a Tx."""

    async def fetch(self, sql: str, /, *arguments: Any) -> list[Any]: ...

    async def fetchrow(self, sql: str, /, *arguments: Any) -> Any: ...

    async def fetchval(self, sql: str, /, *arguments: Any) -> Any: ...


class UsageRefusal(StrEnum):
    """Why an event is not counted, in the database's terms."""

    REUSED = "reused"
    NO_SUBSCRIPTION = "no_subscription"
    NOT_ENTITLED = "not_entitled"
    UNKNOWN_FEATURE = "unknown_feature"
    NOT_INCLUDED = "not_included"
    OVER_LIMIT = "over_limit"


STATUS: Final = {
    UsageRefusal.REUSED: HTTPStatus.UNPROCESSABLE_ENTITY,
    UsageRefusal.NO_SUBSCRIPTION: HTTPStatus.FORBIDDEN,
    UsageRefusal.NOT_ENTITLED: HTTPStatus.FORBIDDEN,
    UsageRefusal.UNKNOWN_FEATURE: HTTPStatus.NOT_FOUND,
    UsageRefusal.NOT_INCLUDED: HTTPStatus.FORBIDDEN,
    UsageRefusal.OVER_LIMIT: HTTPStatus.TOO_MANY_REQUESTS,
}


class UsageRefused(PayonceError):
    """An event that is not counted; nothing was written."""

    def __init__(self, why: UsageRefusal, reason: str, used: int | None = None, limit: int | None = None) -> None:
        super().__init__(reason)
        self.why = why
        self.status = STATUS[why]
        self.used = used
        self.limit = limit


@dataclass(frozen=True)
class CountedUsage:
    """The result of an event, the same for its repetitions."""

    feature: str
    event_id: str
    delta: int
    counted: int
    """Less than the delta if more was returned than was used."""
    used: int
    limit: int | None
    period_start: datetime
    repeated: bool

    @property
    def left(self) -> int | None:
        return left(self.limit, self.used)


@dataclass(frozen=True)
class FeatureUse:
    feature: str
    used: int
    limit: int | None

    @property
    def left(self) -> int | None:
        return left(self.limit, self.used)


@dataclass(frozen=True)
class CurrentUsage:
    """An account's limits, and its usage in the current allowance window."""

    subscription_id: str
    plan_id: str
    state: State
    running: bool
    """Whether anything may be used at all."""
    period_start: datetime | None
    period_end: datetime | None
    features: tuple[FeatureUse, ...]

    def of(self, feature: str) -> FeatureUse | None:
        return next((each for each in self.features if each.feature == feature), None)


@dataclass(frozen=True)
class Entitlement:
    """Whether one more use would be counted now, and otherwise why not."""

    feature: str
    entitled: bool
    why_not: UsageRefusal | None
    state: State | None
    used: int | None
    limit: int | None
    left: int | None
    resets_at: datetime | None


@dataclass(frozen=True)
class PeriodTotal:
    subscription_id: str
    feature: str
    period_start: datetime
    total: int
    events: int


async def use(to: Reads, account_id: str, feature: str, delta: int, event_id: str) -> CountedUsage:
    """Counts an event in one call, which commits by itself or with the caller's transaction. Repeating an event returns
    the first result. Raises UsageRefused."""
    row = await to.fetchrow(
        """
        select outcome, counted, used, allowed, period_start, period_end, state
        from subscriptions.use($1, $2, $3, $4)
        """,
        account_id,
        feature,
        delta,
        event_id,
    )
    return read_answer(row, feature, delta, event_id)


def read_answer(row: Any, feature: str, delta: int, event_id: str) -> CountedUsage:
    """Converts a row of the database's answer; raises UsageRefused."""
    outcome = row["outcome"]
    if outcome not in ("counted", "repeated"):
        raise _refused(UsageRefusal(outcome), row, feature, delta, event_id)
    return CountedUsage(
        feature,
        event_id,
        delta,
        row["counted"],
        row["used"],
        row["allowed"],
        row["period_start"],
        outcome == "repeated",
    )


async def current_usage(read: Reads, account_id: str) -> CurrentUsage | None:
    """None if the account has no subscription, or only ended ones."""
    rows = await read.fetch(
        """
        select s.id, s.plan_id, s.state, w.period_start, w.period_end, f.key as feature,
            (f.value #>> '{}')::bigint as allowed, coalesce(c.used, 0) as used,
            s.cancel_at_period_end and s.period_end <= subscriptions.time_of(s.test_clock_id) as over
        from subscriptions.subscriptions s join subscriptions.plans p on p.id = s.plan_id
        cross join lateral (
            select subscriptions.window_start(s.allowance_starts, s.period_start, at) as period_start,
                subscriptions.window_end(s.allowance_starts, s.period_end, at) as period_end
            from subscriptions.time_of(s.test_clock_id) at) w
        left join lateral jsonb_each(p.features) f on true
        left join subscriptions.usage_counters c
            on c.subscription_id = s.id and c.feature = f.key and c.period_start = w.period_start
        where s.account_id = $1 and s.state not in ('incomplete_expired', 'canceled')
        order by f.key
        """,
        account_id,
    )
    if not rows:
        return None
    first = rows[0]
    state = State(first["state"])
    features = tuple(FeatureUse(row["feature"], row["used"], row["allowed"]) for row in rows if row["feature"])
    return CurrentUsage(
        first["id"],
        first["plan_id"],
        state,
        state in ENTITLED and not first["over"],
        first["period_start"],
        first["period_end"],
        features,
    )


async def entitlement(read: Reads, account_id: str, feature: str) -> Entitlement:
    found = await current_usage(read, account_id)
    if found is None:
        return Entitlement(feature, False, UsageRefusal.NO_SUBSCRIPTION, None, None, None, None, None)
    used = found.of(feature)
    why: UsageRefusal | None = None
    if used is None:
        why = UsageRefusal.NOT_INCLUDED if await is_known(read, feature) else UsageRefusal.UNKNOWN_FEATURE
        return Entitlement(feature, False, why, found.state, None, None, None, None)
    if not found.running:
        why = UsageRefusal.NOT_ENTITLED
    elif used.left == 0:
        why = UsageRefusal.OVER_LIMIT
    return Entitlement(feature, why is None, why, found.state, used.used, used.limit, used.left, found.period_end)


async def is_known(read: Reads, feature: str) -> bool:
    """Whether any plan version, including retired ones, has the feature."""
    known: bool = await read.fetchval(
        "select exists (select from subscriptions.plans p where p.features ? $1)", feature
    )
    return known


async def totals(
    read: Reads, account_id: str, feature: str | None = None, limit: int = PERIODS_SHOWN_MAX
) -> list[PeriodTotal]:
    """Per subscription, feature and allowance window, latest first. Events that are not rolled up yet are added in the
    same statement, so the totals are always exact."""
    rows = await read.fetch(
        """
        with mine as (select id from subscriptions.subscriptions where account_id = $1)
        select subscription_id, feature, period_start, sum(total)::bigint as total, sum(events)::bigint as events
        from (
            select t.subscription_id, t.feature, t.period_start, t.total, t.events
            from subscriptions.usage_totals t join mine on mine.id = t.subscription_id
            union all
            select e.subscription_id, e.feature, e.period_start, sum(e.counted), count(*)
            from subscriptions.usage_events e join mine on mine.id = e.subscription_id
            where not e.rolled
            group by 1, 2, 3) known
        where $2::text is null or feature = $2
        group by 1, 2, 3 order by period_start desc, feature, subscription_id limit $3
        """,
        account_id,
        feature,
        min(limit, PERIODS_SHOWN_MAX),
    )
    return [PeriodTotal(**row) for row in rows]


async def reset(tx: Tx, account_id: str, feature: str | None, by: str, reason: str) -> dict[str, int]:
    """Resets the counters of the current window, of one feature or of all, and returns their previous values. Events
    and totals stay, since the usage happened; without usage nothing changes."""
    rows = await tx.fetch(
        """
        with standing as (
            select c.subscription_id, c.feature, c.used
            from subscriptions.usage_counters c
            join subscriptions.subscriptions s on s.id = c.subscription_id and c.period_start =
                subscriptions.window_start(
                    s.allowance_starts, s.period_start, subscriptions.time_of(s.test_clock_id))
            where s.account_id = $1 and s.state not in ('incomplete_expired', 'canceled')
              and ($2::text is null or c.feature = $2)
            order by c.feature for update of c)
        update subscriptions.usage_counters c
        set used = 0, forgiven = c.forgiven + standing.used, updated_at = payonce.due_now()
        from standing
        where c.subscription_id = standing.subscription_id and c.feature = standing.feature and standing.used > 0
        returning c.subscription_id, c.feature, standing.used
        """,
        account_id,
        feature,
    )
    given = {row["feature"]: row["used"] for row in sorted(rows, key=lambda row: str(row["feature"]))}
    if given:
        resets = ", ".join(f"{each} from {used}" for each, used in given.items())
        await tx.audit("billing.usage_reset", account_id, f"{resets} to 0: {reason}", actor=by)
    return given


async def carry_over(
    tx: Tx, subscription: Subscription, left_at: datetime, begun_at: datetime, share: Fraction
) -> None:
    """Carries a share of the usage from the window that began at `left_at` into the one that begins at `begun_at`, in
    proportion to the credited price. Otherwise switching between monthly and annual plans would reset the counters at
    will. Two events move the usage, so the sum of both totals stays the same; every counter is moved, so that a
    concurrent count detects that it read the subscription before the change."""
    await tx.execute(
        """
        with standing as (
            select c.feature, c.used, case when c.period_start = $2
                then ceil(c.used * $4::numeric / $5::numeric)::bigint else 0 end as along,
                -- Of a window that was left before, and is now come back to.
                coalesce((
                    select t.total from subscriptions.usage_totals t
                    where t.subscription_id = $1 and t.feature = c.feature and t.period_start = $3), 0)
                + coalesce((
                    select sum(e.counted) from subscriptions.usage_events e
                    where e.subscription_id = $1 and e.feature = c.feature and e.period_start = $3
                      and not e.rolled), 0)::bigint as before
            from subscriptions.usage_counters c where c.subscription_id = $1 order by c.feature for update of c),
        moved as (
            update subscriptions.usage_counters c
            set period_start = $3, used = standing.before + standing.along, forgiven = 0,
                updated_at = payonce.due_now()
            from standing where c.subscription_id = $1 and c.feature = standing.feature)
        insert into subscriptions.usage_events (account_id, event_id, subscription_id, feature, delta, counted,
            used_after, period_start, at)
        select $6, $7 || side.name || feature, $1, feature, side.sign * along, side.sign * along,
            case side.sign when 1 then before + along else used - along end, side.period_start, $3
        from standing
        cross join (values (' from ', -1, $2::timestamptz), (' to ', 1, $3)) side (name, sign, period_start)
        where along > 0
        """,
        subscription.id,
        left_at,
        begun_at,
        share.numerator,
        share.denominator,
        subscription.account_id,
        # A new id, which no customer can have used for an event.
        str(new_id()),
    )


def left(limit: int | None, used: int) -> int | None:
    """None is unlimited. After a downgrade more may be used than the plan allows."""
    return None if limit is None else max(0, limit - used)


def _refused(why: UsageRefusal, row: Any, feature: str, delta: int, event_id: str) -> UsageRefused:
    used, limit = row["used"], row["allowed"]
    if why is UsageRefusal.OVER_LIMIT:
        until = row["period_end"].isoformat()
        return UsageRefused(
            why,
            f"{feature}: {used} of {limit} are used, {left(limit, used)} are left and {delta} were requested; the "
            f"limit resets at {until}, and a larger plan applies at once",
            used,
            limit,
        )
    sentences = {
        UsageRefusal.REUSED: f"event_id {event_id!r} belongs to another event; use a new id for every event",
        UsageRefusal.NO_SUBSCRIPTION: "this account has no subscription; create one first",
        UsageRefusal.NOT_ENTITLED: f"the subscription is {row['state']}; nothing can be used until it is active again",
        UsageRefusal.UNKNOWN_FEATURE: f"no plan has a feature {feature!r}",
        UsageRefusal.NOT_INCLUDED: f"the plan does not include {feature!r}; change to one that does",
    }
    return UsageRefused(why, sentences[why])
