"""Claims messages: one script settles finished ones and claims new ones, in one round trip."""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final
from uuid import UUID

from payonce.engine.database.connections import Connection
from payonce.engine.database.notifier import Notifier
from payonce.engine.messages.job_log import write_runs
from payonce.engine.messages.maintenance import Task, describe, synthetic_message, write_maintenance_run
from payonce.engine.messages.model import Claim, Ending, SettleAnswer, Settlement
from payonce.engine.messages.policy import Policy
from payonce.engine.messages.ports import POLL_S, Exchange
from payonce.engine.messages.rows import UNREADABLE
from payonce.engine.outbox import SettleOutcome, accept_without_entry, hold_durable, settle_durable, wake_name
from payonce.kit.ids import new_id, random_token
from payonce.kit.log import get_logger
from payonce.queues.redis import scripts
from payonce.queues.redis.codec import decode_any, decode_plain
from payonce.queues.redis.durable_copy import (
    KEPT,
    MAYBE_KEPT,
    RELAY,
    DirectClaim,
    KeptClaim,
    bring_again,
    check,
    park_dead,
    record,
)
from payonce.queues.redis.job_log import line, try_to_write_runs
from payonce.queues.redis.repair import repair_claims
from payonce.queues.redis.settlement import (
    US,
    DeadClaim,
    ScriptArguments,
    answers_as_recorded,
    dead_claim,
    ending_arguments,
    moment,
    removal_arguments,
    run_of,
    success_arguments,
    us_of,
)
from payonce.queues.redis.store import RedisStore
from payonce.queues.redis.unreadable import log_unreadable, park_unreadable
from payonce.queues.redis.wait import CLAIMING_WAIT_S, ArrivalWatcher, Prefetched

REAP_BATCH: Final = 200
SETTLE_MAX: Final = 1_000
ANSWERS: Final = {ord("S"): SettleAnswer.SETTLED, ord("A"): SettleAnswer.ALREADY, ord("T"): SettleAnswer.STALE}
PLAIN: Final = "p"
LEASE_MIN_S: Final = 10 * CLAIMING_WAIT_S
"""Queues with shorter leases do not prefetch: a claim may begin that much before the worker learns of it."""
ENDS: Final = (Ending.SUCCESS, Ending.FAILED)

log = get_logger(__name__)


class RedisQueue:
    """One queue in one worker process."""

    mirrors = True

    def __init__(self, store: RedisStore, notifier: Notifier, policy: Policy, worker: str) -> None:
        self.policy = policy
        self._store = store
        self._database = store.database
        self._notifier = notifier
        self._worker = re.sub(r"\s", "_", worker)
        self._lease_us = round(policy.lease_s * US)
        self._limit = policy.limit_name or ""
        self._retention_us = round(policy.key_retention_s * US)
        self._wakeup = asyncio.Event()
        self._watcher = ArrivalWatcher(store, policy.queue, self._wakeup, self._claim_one, self._return_prefetched)
        self._held: set[UUID] = set()
        """Messages put directly into Redis that a run of this process has given a row in the outbox."""
        self._fates: dict[tuple[UUID, int], SettleOutcome] = {}
        """Settlements recorded in PostgreSQL that Redis may not know yet: a repeated batch does not record them
        again."""
        notifier.subscribe(policy.queue, self._wakeup)

    async def exchange(self, settlements: Sequence[Settlement], limit: int) -> Exchange:
        prefetched = self._watcher.take() if limit else None
        if prefetched is None:
            return await self._exchange_in_parts(settlements, limit)
        claims = await self._claims_of(prefetched)
        rest = await self._exchange_in_parts(settlements, limit - len(claims)) if settlements else Exchange(more=True)
        return replace(rest, claims=[*claims, *rest.claims], asked_at=prefetched.asked_at)

    async def _exchange_in_parts(self, settlements: Sequence[Settlement], limit: int) -> Exchange:
        answers: list[SettleAnswer] = []
        while len(settlements) > SETTLE_MAX:
            answers += (await self._exchange(settlements[:SETTLE_MAX], 0)).answers
            settlements = settlements[SETTLE_MAX:]
        last = await self._exchange(settlements, limit)
        return replace(last, answers=[*answers, *last.answers]) if answers else last

    async def _exchange(self, settlements: Sequence[Settlement], limit: int) -> Exchange:
        fates = await self._record(settlements)
        done: list[ScriptArguments] = []
        others: list[ScriptArguments] = []
        places: list[tuple[bool, int] | None] = []
        for settlement in settlements:
            fate = fates.get(settlement.claim.message.id)
            if fate is SettleOutcome.STALE:
                places.append(None)
            elif fate in (SettleOutcome.GONE, SettleOutcome.UNKNOWN):
                places.append((False, len(others)))
                others.append(removal_arguments(settlement.claim.message.id, settlement.claim.token))
            elif settlement.ending is Ending.SUCCESS:
                places.append((True, len(done)))
                done.append(success_arguments(settlement, logged=self.policy.log == "all"))
            else:
                places.append((False, len(others)))
                others.append(ending_arguments(settlement))
        token = random_token()
        now_us, rest, letters, *claimed = await self._run(token, limit, "ready", done, others)
        now = moment(now_us)
        answers = [
            SettleAnswer.STALE if place is None else ANSWERS[letters[place[1] if place[0] else len(done) + place[1]]]
            for place in places
        ]
        rest_s = POLL_S if rest == b"paused" else int(rest) / US if rest else None
        if limit:
            self._watcher.enabled = rest_s is None and len(claimed) < 2 * limit
        await self._end(settlements, fates, answers, now)
        claims = await self._readable(claimed, token, now)
        return Exchange(answers_as_recorded(settlements, fates, answers), claims, rest_s)

    async def _record(self, settlements: Sequence[Settlement]) -> dict[UUID, SettleOutcome]:
        """Settles kept messages in PostgreSQL first. Those that never had a row are left out: only Redis has them."""
        fates: dict[UUID, SettleOutcome] = {}
        batch: list[Settlement] = []
        for settlement in settlements:
            claim = settlement.claim
            known = self._fates.get((claim.message.id, claim.token))
            if known is not None:
                fates[claim.message.id] = known
            elif not settlement.recorded and self._kind(claim) is not None:
                batch.append(settlement)
        if not batch:
            return fates
        taken_over = await self._taken_over([settlement.claim for settlement in batch])
        fates |= dict.fromkeys(taken_over, SettleOutcome.STALE)
        mine = [settlement for settlement in batch if settlement.claim.message.id not in taken_over]
        recorded = await self._record_mine(mine) if mine else {}
        for settlement in mine:
            claim, fate = settlement.claim, recorded[settlement.claim.message.id]
            if fate is not SettleOutcome.UNKNOWN or self._kind(claim) == KEPT:
                fates[claim.message.id] = self._fates[claim.message.id, claim.token] = fate
        return fates

    async def _record_mine(self, settlements: Sequence[Settlement]) -> dict[UUID, SettleOutcome]:
        now = await self._database.engine.fetchval("select payonce.due_now()")
        batch = [
            (settlement, run_of(settlement, now, self._worker) if self._is_logged(settlement) else None)
            for settlement in settlements
        ]
        return await record(self._database, batch)

    async def _taken_over(self, claims: Sequence[Claim]) -> set[UUID]:
        """Claims that other workers hold by now. PostgreSQL decides about messages that a wiped Redis does not know."""
        words = (word for claim in claims for word in (str(claim.message.id), claim.token))
        [letters] = await self._store.run(scripts.LIVE, self.policy.queue, *words)
        return {claim.message.id for claim, letter in zip(claims, letters.decode(), strict=True) if letter == "T"}

    def _is_logged(self, settlement: Settlement) -> bool:
        return settlement.ending is not Ending.SUCCESS or self.policy.log == "all"

    def _kind(self, claim: Claim) -> str | None:
        if isinstance(claim, KeptClaim):
            return claim.kind
        return MAYBE_KEPT if claim.message.id in self._held else None

    async def _end(
        self,
        settlements: Sequence[Settlement],
        fates: dict[UUID, SettleOutcome],
        answers: Sequence[SettleAnswer],
        now: datetime,
    ) -> None:
        """Finishes settlements known to both stores: writes the job-log rows that PostgreSQL lacks."""
        runs = []
        for settlement, answer in zip(settlements, answers, strict=True):
            claim = settlement.claim
            self._held.discard(claim.message.id)
            self._fates.pop((claim.message.id, claim.token), None)
            direct = claim.message.id not in fates and not settlement.recorded
            if direct and answer is SettleAnswer.SETTLED and settlement.ending is not Ending.SUCCESS:
                runs.append(run_of(settlement, now, self._worker))
        await try_to_write_runs(self._database, [run for run in runs if run is not None])

    async def _run(
        self,
        token: int,
        limit: int,
        source: str,
        done: Sequence[ScriptArguments] = (),
        others: Sequence[ScriptArguments] = (),
    ) -> list[bytes]:
        return await self._store.run(
            scripts.EXCHANGE,
            self.policy.queue,
            *self._terms(token, limit, source),
            len(done),
            *(word for words in done for word in words),
            *(word for words in others for word in words),
        )

    def _terms(self, token: int, limit: int, source: str) -> ScriptArguments:
        return (self._lease_us, self._worker, token, limit, source, str(new_id()), self._retention_us, self._limit)

    def _claim_one(self, token: int) -> ScriptArguments:
        return self._store.evalsha(scripts.EXCHANGE, self.policy.queue, *self._terms(token, 1, "ready"), 0)

    async def _claims_of(self, prefetched: Prefetched) -> list[Claim]:
        now_us, _, _, *claimed = prefetched.answer
        return await self._readable(claimed, prefetched.token, moment(now_us))

    async def _return_prefetched(self, prefetched: Prefetched) -> None:
        """Returns an unread claim to its place in the queue."""
        await self._store.run(scripts.GIVE_BACK, self.policy.queue, self._worker, prefetched.token)

    async def _readable(self, claimed: Sequence[bytes], token: int, now: datetime) -> list[Claim]:
        """Decodes claimed messages. An unreadable one is parked with the reason and does not block the others."""
        claims: list[Claim] = []
        kept: list[KeptClaim] = []
        queue = self.policy.queue
        for position in range(0, len(claimed), 2):
            body, info = claimed[position], claimed[position + 1]
            try:
                if not info:
                    claims.append(DirectClaim(decode_plain(queue, body), token, 0, now, now, first=True))
                    continue
                flags, crashes, first = info.decode().split()
                message = decode_plain(queue, body) if flags[1] == PLAIN else decode_any(queue, body)
            except UNREADABLE as error:
                words = await park_unreadable(self._store, queue, body, token, us_of(now), str(error))
                await self._run(random_token(), 0, "ready", (), [words])
                continue
            if flags[0] in (KEPT, MAYBE_KEPT):
                kept.append(KeptClaim(message, token, int(crashes), now, moment(first), kind=flags[0]))
                claims.append(kept[-1])
            else:
                claims.append(DirectClaim(message, token, int(crashes), now, moment(first)))
        return await self._checked(claims, kept) if kept else claims

    async def _checked(self, claims: Sequence[Claim], kept: Sequence[KeptClaim]) -> list[Claim]:
        """Claims that may run: kept messages only if they match PostgreSQL's row."""
        checked = await check(self._database, kept)
        if checked.paused:
            await self._remember_pause(claims)
            return []
        dropped = [*checked.settled, *checked.outdated]
        to_run = {claim.message.id: claim for claim in checked.run}
        lost = {claim.message.id for claim in dropped}
        left = [to_run.get(claim.message.id, claim) for claim in claims if claim.message.id not in lost]
        if not dropped:
            return left
        gone = [removal_arguments(claim.message.id, claim.token) for claim in dropped]
        await self._run(random_token(), 0, "ready", (), gone)
        if checked.outdated:
            await bring_again(self._database.engine, [claim.message.id for claim in checked.outdated])
            self._notifier.notify({wake_name(RELAY)})
        log.info(
            "copies_dropped", queue=self.policy.queue, settled=len(checked.settled), outdated=len(checked.outdated)
        )
        return left

    async def _remember_pause(self, claims: Sequence[Claim]) -> None:
        """Restores a pause that was lost in a failover to a lagging replica. Claims are released unchanged."""
        log.warning("redis_forgot_pause", queue=self.policy.queue, claims=len(claims))
        await self._store.declare(self.policy.queue)
        back = [ending_arguments(Settlement(claim, Ending.RELEASED)) for claim in claims]
        await self._run(random_token(), 0, "ready", (), back)

    async def claim_alone(self) -> Claim | None:
        token = random_token()
        now_us, _, _, *claimed = await self._run(token, 1, "alone")
        claims = await self._readable(claimed, token, moment(now_us))
        return claims[0] if claims else None

    async def mark_alone(self, claim: Claim) -> bool:
        [marked] = await self._store.run(scripts.MARK_ALONE, self.policy.queue, str(claim.message.id), claim.token)
        return bool(marked)

    async def extend(self, claims: Sequence[Claim]) -> list[Claim]:
        named = (word for claim in claims for word in (str(claim.message.id), claim.token))
        lost = await self._store.run(scripts.EXTEND, self.policy.queue, self._lease_us, *named)
        gone = {message_id.decode() for message_id in lost}
        return [claim for claim in claims if str(claim.message.id) in gone]

    async def give_back(self, running: Sequence[Claim]) -> int:
        self._watcher.discard()
        ids = [str(claim.message.id) for claim in running]
        [count] = await self._store.run(scripts.GIVE_BACK, self.policy.queue, self._worker, "", *ids)
        await self._watcher.return_released()
        return int(count)

    async def settle_within(self, connection: Connection, settlement: Settlement) -> bool:
        """Returns False if the run was taken over. Redis detects most cases; the row or the inbox catches the rest."""
        claim, kind = settlement.claim, self._kind(settlement.claim)
        if await self._taken_over([claim]):
            return False
        fate = SettleOutcome.UNKNOWN
        if kind is not None:
            [fate] = await settle_durable(connection, RELAY, [settlement])
        if fate is SettleOutcome.UNKNOWN and kind == KEPT:
            fate = SettleOutcome.GONE
        elif fate is SettleOutcome.UNKNOWN and settlement.ending in ENDS:
            fate = await accept_without_entry(connection, RELAY, claim.message)
        if fate is SettleOutcome.GONE:
            # Otherwise it would run again after each lease, and be parked in the end although it is settled.
            await self._run(random_token(), 0, "ready", (), [removal_arguments(claim.message.id, claim.token)])
        if fate is not SettleOutcome.RECORDED:
            return False
        if self._is_logged(settlement):
            run = run_of(settlement, await connection.fetchval("select payonce.due_now()"), self._worker)
            await write_runs(connection, [] if run is None else [run])
        return True

    async def hold_within(self, connection: Connection, claim: Claim) -> bool:
        """Returns False if the lease is lost. A message that only Redis has first gets a row in the outbox."""
        [live] = await self._store.run(
            scripts.HOLD, self.policy.queue, self._lease_us, str(claim.message.id), claim.token
        )
        if not live:
            return False
        self._held.add(claim.message.id)
        return await hold_durable(connection, RELAY, claim, self.policy.lease_s)

    async def reap(self) -> int:
        now_us, incomplete, *dead = await self._store.run(scripts.DEAD, self.policy.queue, REAP_BATCH)
        await log_unreadable(self._store, self.policy.queue, self._worker)
        put_back = await repair_claims(self._store, self.policy.queue) if incomplete else 0
        found = [
            held
            for position in range(0, len(dead), 3)
            if (held := dead_claim(self.policy.queue, moment(now_us), *dead[position : position + 3])) is not None
        ]
        if not found:
            return put_back
        parked, dropped = await self._park_first(found)
        words = [word for held in found if held not in dropped for word in held.arguments]
        ids = await self._store.run(scripts.REAP, self.policy.queue, *words)
        taken = set(ids)
        reaped = [held for held in found if held.name in taken]
        for held in reaped:
            log.warning(
                "lease_ended",
                queue=self.policy.queue,
                message_id=held.id,
                worker=held.worker,
                crashes=held.crashes,
                now=held.state.value,
            )
        runs = [held.run for held in reaped if held.run is not None and held.uuid not in parked]
        await try_to_write_runs(self._database, runs)
        return put_back + len(reaped)

    async def _park_first(self, found: Sequence[DeadClaim]) -> tuple[set[UUID], list[DeadClaim]]:
        """Parks isolated crashes of kept messages in PostgreSQL first. Returns the ids of those, and the claims whose
        messages are settled."""
        kept = [held for held in found if held.alone and held.kept]
        parked = await park_dead(self._database, [held.death for held in kept]) if kept else set()
        dropped = [held for held in kept if held.kind == KEPT and held.uuid not in parked]
        if dropped:
            gone = [removal_arguments(held.id, held.token) for held in dropped]
            await self._run(random_token(), 0, "ready", (), gone)
        return parked, dropped

    async def log_maintenance(self, task: Task, moved: int) -> None:
        entry, info = synthetic_message(self.policy.queue, task), describe(task, moved)
        await self._store.run(scripts.LOG, self.policy.queue, line(entry, "success", 1, info))
        await write_maintenance_run(self._database, entry, info, self._worker)

    async def wait(self, timeout_s: float, room: int = 0) -> None:
        if not room:
            await self._watcher.return_unused()
        self._watcher.listen(claiming=room > 0 and self.policy.lease_s >= LEASE_MIN_S)
        try:
            async with asyncio.timeout(timeout_s):
                await self._wakeup.wait()
        except TimeoutError:
            pass
        finally:
            self._watcher.pause()
        self._wakeup.clear()

    async def stop_waiting(self) -> None:
        await self._watcher.close()

    def wake(self) -> None:
        self._wakeup.set()
