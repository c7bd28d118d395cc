"""Rate limits for calls to a vendor, shared by all processes: one row per budget, one statement for one or several
calls.

GCRA: the row holds the time up to which all turns given so far are paid for. A turn is a time to send at; over any
window of w seconds, turns cost at most rate · w + burst. Turns are never returned. An unused turn lapses and is made up
for by time alone, so a process that dies with turns takes nothing with it.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import zip_longest
from typing import Any, Final

from payonce.engine.database.connections import Connection, Database
from payonce.engine.messages.model import NAME_MAX_LENGTH
from payonce.engine.monitoring.metrics import BUDGET_PENALTIES, BUDGET_REFUSALS, BUDGET_WAIT_SECONDS
from payonce.kit.log import get_logger
from payonce.kit.outcomes import Invalid, NotSent
from payonce.kit.redact import redact

RATE_LEAST: Final = 1 / 86_400
RATE_MAX: Final = 10_000.0
"""The store counts in microseconds; beyond this, rounding would show."""
BURST_MAX: Final = 1_000_000
WAIT_MAX_S: Final = 300.0
PENALTY_MAX_S: Final = 86_400.0
"""A vendor's Retry-After may say anything; a longer rest is a person's decision."""
ASK_LIMIT_S: Final = 5.0
"""For the store's answer. A call that cannot be counted is not made."""
PENALTY_WRITE_LIMIT_S: Final = 1.0
"""For writing a penalty, while the call's own time-out is running."""
LATE_LEAST_S, LATE_MAX_S, LATE_SHARE = 0.15, 1.0, 0.12
PACE_KEPT_S: Final = 5.0
"""The store's quickest answer counts for this long, and once more: no process stalls that long and then continues."""

log = get_logger(__name__)


@dataclass(frozen=True)
class Turn:
    """When a call may go out, by the store's clock and in seconds from its answer. If not given: when it could have
    gone out."""

    given: bool
    at: datetime
    wait_s: float
    comes_at: float
    """By this process's clock and never later than by the store's, as it was read before the store was asked."""


def budget_share(port: Any, allowed_per_s: float) -> tuple[float, int]:
    """Rate and burst of the budget for a key with this allowance, in the same proportion as the vendor's port uses for
    the usual allowance."""
    share = allowed_per_s / port.REQUESTS_PER_S
    return share * port.BUDGET_PER_S, max(1, int(share * port.BUDGET_BURST))


class SharedBudget:
    """A `payonce.kit.budget.Budget` shared by all processes on one database.

    The store keeps one rate and burst per name, which apply to everyone. A process that states other numbers writes
    them when it first asks and logs `budget_changed`: of two processes that disagree, the last one determines the
    numbers until the other restarts. State them once, in the settings that all processes share.

    Waiting counts towards the caller's time-out: keep `wait_max_s` well below it.
    """

    def __init__(
        self, database: Database, name: str, rate_per_s: float, burst: int = 1, wait_max_s: float = 5.0
    ) -> None:
        _check(name, rate_per_s, burst, wait_max_s)
        self.name = name
        self._database = database
        self._rate_per_s = rate_per_s
        self._burst = burst
        self._wait_max_s = wait_max_s
        self._is_declared = False
        self._pace = _StoreLatency()
        self._gathered = _BatchedTurns(database, name)

    async def wait_turn(self, cost: int = 1) -> None:
        """Returns when the call may go out. Raises NotSent when its turn would come too late; then only turns missed on
        the way are spent."""
        if not 1 <= cost <= self._burst:
            raise Invalid(f"cost is {cost}; a call against budget {self.name} costs 1 to its burst of {self._burst}")
        began_at = time.monotonic()
        left_s = self._wait_max_s
        while not await self._has_turn(cost, left_s):
            left_s = self._wait_max_s - (time.monotonic() - began_at)
            if left_s <= 0:
                raise self._refused(f"this process could not use a turn of budget {self.name} in time")
        BUDGET_WAIT_SECONDS.labels(self.name).observe(time.monotonic() - began_at)

    async def penalise(self, seconds: float) -> None:
        """The vendor reported too many calls: for this long nobody calls, even with a turn already given, and
        afterwards calls go out one by one. A pause shorter than the current one changes nothing."""
        if not 0 <= seconds < math.inf:
            raise Invalid(f"a penalty of {seconds} s for budget {self.name}; it must be 0 s or more")
        rest_s = min(seconds, PENALTY_MAX_S)
        BUDGET_PENALTIES.labels(self.name).inc()
        log.warning("budget_penalised", budget=self.name, seconds=rest_s)
        try:
            async with asyncio.timeout(PENALTY_WRITE_LIMIT_S):
                await self._declare()
                await penalise(self._database, self.name, rest_s)
        except Exception as error:
            # The vendor's answer must not be lost over this; the vendor will repeat the penalty at the next call.
            log.warning("budget_penalty_not_stored", budget=self.name, error=redact(f"{type(error).__name__}: {error}"))

    async def _has_turn(self, cost: int, wait_max_s: float) -> bool:
        """Waits for a turn; False when it can no longer be used."""
        async with self._asking():
            await self._declare()
            if cost == 1:
                turn = await self._gathered.turn(wait_max_s)
            else:
                turn = await take_turn(self._database, self.name, cost, wait_max_s)
        if not turn.given:
            raise self._refused(f"budget {self.name} has its next turn in {turn.wait_s:.1f} s")
        usual_s = self._pace.after(turn.comes_at - turn.wait_s)
        if turn.wait_s > 0:
            await asyncio.sleep(turn.wait_s)
            asked_at = time.monotonic()
            # The vendor may have sent a penalty to another process meanwhile.
            async with self._asking():
                if await is_held(self._database, self.name):
                    return False
            usual_s += self._pace.after(asked_at)
        return time.monotonic() - turn.comes_at <= late_max_s(self._rate_per_s, usual_s)

    @asynccontextmanager
    async def _asking(self) -> AsyncIterator[None]:
        """Turns every error into NotSent, since the call was not made."""
        try:
            async with asyncio.timeout(ASK_LIMIT_S):
                yield
        except Exception as error:
            if isinstance(error, Invalid):
                # Somebody removed or changed the row: declare the numbers again.
                self._is_declared = False
            reason = redact(f"{type(error).__name__}: {error}")
            log.warning("budget_not_read", budget=self.name, error=reason)
            raise NotSent(f"budget {self.name} could not be read, so nothing was sent: {reason}") from error

    def _refused(self, why: str) -> NotSent:
        BUDGET_REFUSALS.labels(self.name).inc()
        return NotSent(
            f"{why}, and the longest wait is {self._wait_max_s:g} s; try later, or send fewer calls to this vendor"
        )

    async def _declare(self) -> None:
        if not self._is_declared:
            await declare_budget(self._database, self.name, self._rate_per_s, self._burst)
            self._is_declared = True


class _StoreLatency:
    """How long the store takes for a quick answer, which is not a stall of this process."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._before_s = self._lately_s = 0.0

    def after(self, asked_at: float) -> float:
        """The shortest recent answer time, this answer included."""
        answered_at = time.monotonic()
        if answered_at - self._since > PACE_KEPT_S:
            self._since, self._before_s, self._lately_s = answered_at, self._lately_s, math.inf
        self._lately_s = min(self._lately_s, answered_at - asked_at)
        return min(self._before_s, self._lately_s)


class _BatchedTurns:
    """Takes the turns of simultaneous callers in one statement. Each gets the turn it would have got one after the
    other, and the row is locked and written once."""

    def __init__(self, database: Database, name: str) -> None:
        self._database = database
        self._name = name
        self._waiting: list[tuple[float, asyncio.Future[Turn]]] = []
        self._asking: asyncio.Task[None] | None = None

    async def turn(self, wait_max_s: float) -> Turn:
        turn: asyncio.Future[Turn] = asyncio.get_running_loop().create_future()
        self._waiting.append((wait_max_s, turn))
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask())
        return await turn

    async def _ask(self) -> None:
        callers: list[tuple[float, asyncio.Future[Turn]]] = []
        try:
            while self._waiting:
                callers, self._waiting = self._waiting, []
                try:
                    await self._give(callers)
                except Exception as error:
                    _refuse(callers, error)
        finally:
            self._asking = None
            _refuse([*callers, *self._waiting], OSError("the process is stopping"))

    async def _give(self, callers: list[tuple[float, asyncio.Future[Turn]]]) -> None:
        # A turn for a caller that went away would only lapse.
        callers = [each for each in callers if not each[1].done()]
        if not callers:
            return
        given: list[Turn] = []
        if len(callers) > 1:
            given = await take_turns(self._database, self._name, len(callers), min(wait_s for wait_s, _ in callers))
        for (wait_max_s, turn), each in zip_longest(callers, given):
            found = each or await take_turn(self._database, self._name, 1, wait_max_s)
            if not turn.done():
                turn.set_result(found)


def _refuse(callers: list[tuple[float, asyncio.Future[Turn]]], error: Exception) -> None:
    for _, turn in callers:
        if not turn.done():
            turn.set_exception(error)


def late_max_s(rate_per_s: float, usual_s: float = 0.0) -> float:
    """The longest delay after which a turn is still used. A call delayed longer has lost its turn and asks again;
    otherwise calls that a stalled process could not send would all go out together. Below one turn per second, the
    limit is a share of the interval between turns. The store's usual answer time is added: it delays all calls alike,
    and with a slow store no call would ever be in time."""
    return min(LATE_MAX_S, max(LATE_LEAST_S, LATE_SHARE / rate_per_s) + usual_s)


async def declare_budget(database: Database, name: str, rate_per_s: float, burst: int) -> None:
    """Writes the numbers of a budget to the store. Spent turns and penalties stay."""
    changed = await database.engine.fetchval(
        """
        insert into payonce.budgets as known (name, rate_per_s, burst) values ($1, $2, $3)
        on conflict (name) do update set rate_per_s = excluded.rate_per_s, burst = excluded.burst
            where (known.rate_per_s, known.burst) is distinct from ($2, $3)
        returning xmax <> 0
        """,
        name,
        rate_per_s,
        burst,
    )
    if changed:
        # Expected after a change of settings; logged because another process may still state the old numbers.
        log.warning("budget_changed", budget=name, rate_per_s=rate_per_s, burst=burst)


async def take_turn(database: Database, name: str, cost: int, wait_max_s: float) -> Turn:
    """The next turn if it comes within the wait; otherwise nothing is spent."""
    async with database.engine.acquire() as connection:
        asked_at = time.monotonic()
        row = await connection.fetchrow(
            # After a wait for the row's lock the condition is evaluated on the newest row, so turns follow each other.
            """
            update payonce.budgets
            set arrival_at = greatest(arrival_at, payonce.due_now()) + make_interval(secs => $2 / rate_per_s)
            where name = $1 and $2 <= burst
              and greatest(arrival_at, payonce.due_now()) + make_interval(secs => ($2 - burst) / rate_per_s - $3)
                  <= payonce.due_now()
            returning greatest(payonce.due_now(), arrival_at - make_interval(secs => burst / rate_per_s)) as at,
                payonce.due_now() as asked_at
            """,
            name,
            float(cost),
            wait_max_s,
        )
        if row is None:
            return await _next_turn(connection, name, cost)
    wait_s = (row["at"] - row["asked_at"]).total_seconds()
    return Turn(True, row["at"], wait_s, asked_at + wait_s)


async def take_turns(database: Database, name: str, count: int, wait_max_s: float) -> list[Turn]:
    """As many of the next turns, each of cost 1, as come within the wait."""
    async with database.engine.acquire() as connection:
        asked_at = time.monotonic()
        row = await connection.fetchrow(
            """
            with mine as (
                select name, rate_per_s, burst, greatest(arrival_at, payonce.due_now()) as paid_for,
                    payonce.due_now() as now
                from payonce.budgets where name = $1 for update
            ), due as (
                select *, extract(epoch from paid_for - now)::float8 as ahead_s from mine
            ), given as (
                -- Tolerates one microsecond, the resolution of the store.
                select *, least($2::float8, floor(burst + ($3 - ahead_s + 1e-6) * rate_per_s)) as count from due
            )
            update payonce.budgets b
            set arrival_at = given.paid_for + make_interval(secs => given.count / given.rate_per_s)
            from given where b.name = given.name and given.count >= 1
            returning given.count::integer as count, given.ahead_s, given.rate_per_s, given.burst, given.now
            """,
            name,
            float(count),
            wait_max_s,
        )
    if row is None:
        return []
    waits_s = [
        max(0.0, row["ahead_s"] + (number - row["burst"]) / row["rate_per_s"]) for number in range(1, row["count"] + 1)
    ]
    return [Turn(True, row["now"] + timedelta(seconds=wait_s), wait_s, asked_at + wait_s) for wait_s in waits_s]


async def penalise(database: Database, name: str, seconds: float) -> None:
    """Postpones all turns by this many seconds and empties the burst: the vendor has had enough calls at once."""
    await database.engine.execute(
        """
        update payonce.budgets
        set held_until = greatest(held_until, payonce.due_now() + make_interval(secs => $2::float8)),
            arrival_at = greatest(
                arrival_at, payonce.due_now() + make_interval(secs => $2::float8 + (burst - 1) / rate_per_s))
        where name = $1
        """,
        name,
        seconds,
    )


async def is_held(database: Database, name: str) -> bool:
    """Whether a penalty is in force."""
    return bool(
        await database.engine.fetchval(
            "select held_until > payonce.due_now() from payonce.budgets where name = $1", name
        )
    )


async def _next_turn(connection: Connection, name: str, cost: int) -> Turn:
    """The turn reported with a refusal."""
    asked_at = time.monotonic()
    row = await connection.fetchrow(
        """
        select burst, payonce.due_now() as asked_at, greatest(
            payonce.due_now(), arrival_at + make_interval(secs => ($2 - burst) / rate_per_s)) as at
        from payonce.budgets where name = $1
        """,
        name,
        float(cost),
    )
    if row is None:
        raise Invalid(f"there is no budget {name!r}; declare it first")
    if cost > row["burst"]:
        raise Invalid(f"cost is {cost}, but budget {name} has a burst of {row['burst']}: no turn is large enough")
    wait_s = (row["at"] - row["asked_at"]).total_seconds()
    return Turn(False, row["at"], wait_s, asked_at + wait_s)


def _check(name: str, rate_per_s: float, burst: int, wait_max_s: float) -> None:
    if not 1 <= len(name) <= NAME_MAX_LENGTH or "\x00" in name:
        raise Invalid(f"budget name {name[:40]!r} must have 1 to {NAME_MAX_LENGTH} characters and no NUL")
    if not RATE_LEAST <= rate_per_s <= RATE_MAX:
        raise Invalid(f"rate_per_s of budget {name} is {rate_per_s}; it must be {RATE_LEAST:g} to {RATE_MAX:g}")
    if not 1 <= burst <= BURST_MAX:
        raise Invalid(f"burst of budget {name} is {burst}; it must be 1 to {BURST_MAX:,}")
    if not 0 <= wait_max_s <= WAIT_MAX_S:
        raise Invalid(f"wait_max_s of budget {name} is {wait_max_s}; it must be 0 to {WAIT_MAX_S:g} seconds")
