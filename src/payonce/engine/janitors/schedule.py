"""Schedules: messages put at regular times, declared in code, remembered in the store, and put once per due time."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, time
from typing import Any, Final

import whenever

from payonce.engine.database.connections import Database
from payonce.engine.database.leases import fence
from payonce.engine.ledger.model import Reads
from payonce.engine.messages.model import Lease, Message, check_message, encode_payloads
from payonce.engine.messages.policy import Policy
from payonce.engine.messages.transaction import NotifyingFeed, Tx, begin
from payonce.kit.log import get_logger
from payonce.kit.outcomes import Invalid

NAME_MAX: Final = 150
"""Together with its due time, a name must fit into an idempotency key."""
EVERY_MAX_S: Final = 366 * 86_400
DAYS_TO_SEARCH: Final = 4
"""From yesterday: zones differ by less than two days, and a zone that moves across the date line skips a whole day."""

PLANNED_MAX: Final = 1_000
"""Far more than all services declare; they are shown on one page."""

log = get_logger(__name__)


@dataclass(frozen=True)
class Every:
    """Every so many whole seconds since the epoch: the same times in every process and after every start."""

    seconds: int

    def __post_init__(self) -> None:
        if type(self.seconds) is not int or not 1 <= self.seconds <= EVERY_MAX_S:
            raise Invalid(
                f"Every({self.seconds!r}) must be 1 to {EVERY_MAX_S} whole seconds; "
                "to run once a day at a local time use Daily"
            )

    def after(self, moment: datetime) -> datetime:
        """The first regular time after the moment."""
        elapsed = int(moment.timestamp() // self.seconds)
        return datetime.fromtimestamp((elapsed + 1) * self.seconds, UTC)


@dataclass(frozen=True)
class Daily:
    """Once a day at a local time. A skipped time moves on by the skipped hour; of a repeated time, the first counts."""

    at: str
    zone: str

    def __post_init__(self) -> None:
        try:
            time.fromisoformat(self.at if re.fullmatch(r"\d\d:\d\d(:\d\d)?", self.at) else "")
        except (ValueError, TypeError) as error:
            raise Invalid(f"Daily at {self.at!r} is not a time of day; write it like '03:00'") from error
        try:
            self.after(datetime.fromtimestamp(0, UTC))
        except (ValueError, TypeError) as error:
            raise Invalid(
                f"Daily zone {self.zone!r} is not a time zone here; write it like 'Europe/Berlin' or 'UTC'"
            ) from error

    def after(self, moment: datetime) -> datetime:
        """The first regular time after the moment."""
        clock = whenever.Time.parse_iso(self.at)
        yesterday = whenever.Instant.from_timestamp(int(moment.timestamp())).to_tz(self.zone).date().subtract(days=1)
        for days in range(DAYS_TO_SEARCH):
            # RFC 5545: moved on in a gap, the first of two.
            local = yesterday.add(days=days).at(clock).assume_tz(self.zone, disambiguation="compatible")
            found = datetime.fromtimestamp(local.timestamp(), UTC)
            if found > moment:
                return found
        raise AssertionError(f"no {self.at} in {self.zone} within days of {moment.isoformat()}")


@dataclass(frozen=True)
class Schedule:
    """A message that is put at regular times. Times missed while nothing ran are put once. While the message of one
    time has not been begun, none is put for the next, so the queue of a role that runs nowhere does not fill up."""

    name: str
    policy: Policy
    payload: Mapping[str, Any] = field(default_factory=dict)
    every: Every | Daily = field(kw_only=True)
    action: str = ""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9:._-]+", self.name) or len(self.name) > NAME_MAX:
            raise Invalid(f"schedule name {self.name!r} must be 1 to {NAME_MAX} letters, digits, ':', '.', '_' or '-'")
        if not isinstance(self.every, (Every, Daily)):
            raise Invalid(
                f"schedule {self.name}: every is {self.every!r}; it must be Every(seconds) or Daily(at, zone)"
            )
        if not isinstance(self.policy, Policy):
            raise Invalid(f"schedule {self.name}: policy is {self.policy!r}; give the policy of the queue to put into")
        message = Message(queue=self.policy.queue, action=self.action, payload=dict(self.payload))
        check_message(message)
        encode_payloads([message])

    def key(self, due_at: datetime) -> str:
        return f"schedule:{self.name}:{due_at.astimezone(UTC).isoformat()}"


@dataclass(frozen=True)
class ScheduleStatus:
    """A schedule as remembered by the store."""

    name: str
    rule: str
    next_at: datetime
    last_at: datetime | None


async def schedule_statuses(read: Reads, limit: int = PLANNED_MAX) -> list[ScheduleStatus]:
    """All schedules that were ever begun, by name."""
    rows = await read.fetch(
        "select name, rule, next_at, last_at from payonce.schedules order by name limit $1", min(limit, PLANNED_MAX)
    )
    return [ScheduleStatus(**dict(row)) for row in rows]


class Scheduler:
    """Puts the messages of due schedules in the leader's name. Schedules that are not registered here are left
    alone."""

    def __init__(self, database: Database, feed: NotifyingFeed, schedules: Iterable[Schedule] = ()) -> None:
        self._database = database
        self._feed = feed
        self._schedules: dict[str, Schedule] = {}
        for schedule in schedules:
            self.register(schedule)

    def register(self, schedule: Schedule) -> None:
        known = self._schedules.setdefault(schedule.name, schedule)
        if known is not schedule:
            raise Invalid(f"there are two schedules {schedule.name!r}; give each its own name")

    async def tick(self, lease: Lease) -> int:
        """Begins new schedules and puts the due ones. Returns the number of messages. Raises Stale when the lease is
        lost."""
        if not self._schedules:
            return 0
        rows = await self._database.engine.fetch(
            """
            select name, rule, next_at <= payonce.due_now() as due from payonce.schedules where name = any($1::text[])
            """,
            list(self._schedules),
        )
        due_by_name = {row["name"]: row["due"] for row in rows if row["rule"] == repr(self._rule(row["name"]))}
        fired = 0
        for name, schedule in self._schedules.items():
            if name not in due_by_name:
                await self._begin(schedule, lease)
            elif due_by_name[name]:
                fired += await self._fire(schedule, lease)
        return fired

    def _rule(self, name: str) -> Every | Daily:
        return self._schedules[name].every

    async def _begin(self, schedule: Schedule, lease: Lease) -> None:
        """A new or changed schedule waits for its next regular time; its declaration alone triggers nothing."""
        async with self._database.transaction() as connection:
            await fence(connection, lease)
            next_at = schedule.every.after(await connection.fetchval("select payonce.due_now()"))
            await connection.execute(
                """
                insert into payonce.schedules as known (name, rule, next_at) values ($1, $2, $3)
                on conflict (name) do update set rule = excluded.rule, next_at = excluded.next_at
                    where known.rule <> excluded.rule
                """,
                schedule.name,
                repr(schedule.every),
                next_at,
            )
        log.info("schedule_begun", schedule=schedule.name, rule=repr(schedule.every), next_at=next_at.isoformat())

    async def _fire(self, schedule: Schedule, lease: Lease) -> bool:
        """Puts the message and moves the schedule in one transaction, unless the last message has not been begun. The
        key prevents a second message even if the row is set back by hand."""
        async with begin(self._database, self._feed) as tx:
            await fence(tx.connection, lease)
            row = await tx.fetchrow(
                """
                select next_at, last_at, payonce.due_now() as due_now from payonce.schedules
                where name = $1 and rule = $2 and next_at <= payonce.due_now() for update
                """,
                schedule.name,
                repr(schedule.every),
            )
            if row is None:
                return False
            following = schedule.every.after(row["due_now"])
            if row["last_at"] is not None and await _is_waiting(tx, schedule, row["last_at"]):
                await tx.execute("update payonce.schedules set next_at = $2 where name = $1", schedule.name, following)
                return False
            key = schedule.key(row["next_at"])
            await tx.send(schedule.policy, dict(schedule.payload), action=schedule.action, key=key)
            await tx.execute(
                "update payonce.schedules set last_at = next_at, next_at = $2 where name = $1",
                schedule.name,
                following,
            )
        log.info("schedule_fired", schedule=schedule.name, due_at=row["next_at"].isoformat())
        return True


async def _is_waiting(tx: Tx, schedule: Schedule, due_at: datetime) -> bool:
    """Whether the message of that time has not been begun yet."""
    found: bool = await tx.fetchval(
        """
        select exists (select from payonce.live_messages
            where queue = $1 and state = 'ready' and ready_at >= $2 and attempts = 0 and idempotency_key = $3)
        """,
        schedule.policy.queue,
        due_at,
        schedule.key(due_at),
    )
    return found
