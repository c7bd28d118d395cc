"""Runs of a scenario in which at most one process crashes, at one crossing, in one mode, and their verdict."""

import asyncio
import gc
import random
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, cast

import asyncpg

from payonce.testing.crash.backend import Backend, DriverStorage
from payonce.testing.crash.child import ChildConfig
from payonce.testing.crash.children import Child, ChildStartError, CrossingHandler, TurnEnd, fork
from payonce.testing.crash.failover import waits_for_standby
from payonce.testing.crash.model import SENT_IN_QUARANTINE, UNREACHED, Crossing, Label, Mode, Point, Result, Violation
from payonce.testing.crash.oracle import judge
from payonce.testing.crash.run_database import (
    DatabaseTemplate,
    RunDatabase,
    close_run_database,
    open_run_database,
    superuser_of,
)
from payonce.testing.crash.scenario import Scenario, Simulators, options_of
from payonce.testing.crash.schedule import Schedule, StuckError
from payonce.testing.crash.server_crash import Session, open_transaction_id
from payonce.testing.crash.wire import (
    AtCrossing,
    Channel,
    Command,
    CommandDone,
    CrossingAction,
    Notice,
    Reap,
    Release,
    Tick,
    Verdict,
)
from payonce.testing.eventually import eventually

RUN_LIMIT_S: Final = 40.0
"""Time limit of a run with all its children; below the time that a child waits for the explorer."""
TRIES_MAX: Final = 5
"""Attempts at a point whose lost transaction left a trace: the server sometimes flushes its log by itself."""
WAITS_WITHIN_S: Final = 30.0
FIRST, SUCCESSOR = 1, 2

Answer = TypeVar("Answer")
Ablate = Callable[[], object]


class Explorer:
    """Runs points in one process, one at a time. It has an event loop, but forks only while that is stopped."""

    def __init__(self, seed: int, backend: Backend, storage: DriverStorage, *, loud: bool = False) -> None:
        # Existing objects are shared with every child; collecting them would copy their pages once per fork.
        gc.freeze()
        self._seed = seed
        self._backend = backend
        self._storage = storage
        self._loud = loud
        self._runner = asyncio.Runner()
        self._stack = AsyncExitStack()
        self._superusers: dict[int, Session] = {}

    def close(self) -> None:
        self._runner.run(self._stack.aclose())
        self._runner.close()

    def run(
        self, scenario: Scenario, template: DatabaseTemplate, point: Point | None, ablate: Ablate | None = None
    ) -> Result:
        """Runs one point. Does not raise for errors of the scenario: they are violations."""
        began_at = time.monotonic()
        for _ in range(TRIES_MAX):
            run = self._run_once(scenario, template, point, ablate)
            if not run.left_a_trace:
                break
        return Result(scenario.name, point, run.violations, time.monotonic() - began_at, run.crossed, run.id_reused)

    def _run_once(
        self, scenario: Scenario, template: DatabaseTemplate, point: Point | None, ablate: Ablate | None
    ) -> "_Run":
        superuser = self._superuser(template)
        run_database = self._runner.run(open_run_database(template, superuser, self._storage, scenario))
        run = _Run(self, scenario, run_database, point, ablate)
        try:
            run.violations = run.whole()
        finally:
            run.kill_all()
            run.resume_replication()
            self._runner.run(close_run_database(run_database))
        return run

    def _superuser(self, template: DatabaseTemplate) -> Session:
        if id(template.server) not in self._superusers:
            entering = self._stack.enter_async_context(superuser_of(template.server))
            self._superusers[id(template.server)] = self._runner.run(entering)
        return self._superusers[id(template.server)]

    def wait(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        async def bounded() -> Answer:
            async with asyncio.timeout(RUN_LIMIT_S):
                return await work

        return self._runner.run(bounded())

    def fork(self, scenario: Scenario, run_database: RunDatabase, number: int, ablate: Ablate | None) -> Child:
        name = f"{run_database.database.name[:24]} {number}"
        address = (run_database.database.service_url, self._backend, run_database.address)
        config = ChildConfig(name, number, *address, self._seed, run_database.settings, ablate)
        return fork(scenario, config, loud=self._loud)

    def schedule(
        self,
        scenario: Scenario,
        run_database: RunDatabase,
        simulators: Simulators,
        number: int,
        janitors: Sequence[str],
    ) -> Schedule:
        chance = random.Random(f"{self._seed} {scenario.name} {number}")
        longest_s = max(handler.policy.lease_s for handler in scenario.handlers)
        return Schedule(run_database, scenario, simulators, chance, longest_s, janitors)


@dataclass
class _Run:
    explorer: Explorer
    scenario: Scenario
    run_database: RunDatabase
    point: Point | None
    ablate: Ablate | None
    crossed: list[Crossing] = field(default_factory=list)
    children: list[Child] = field(default_factory=list)
    schedules: dict[int, Schedule] = field(default_factory=dict)
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    struck: AtCrossing | None = None
    lost_id: int | None = None
    """The id of the transaction that the server crash undid."""
    id_reused: bool = False
    failing_over: asyncio.Task[None] | None = None
    """Runs while the first process's commit waits for the standby."""
    went_on: bool = False
    """Whether the first process has passed the COMMIT at which it was to fail over."""
    sweeping: bool = False
    violations: list[Violation] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.simulators = self.scenario.simulators(lambda: self.run_database.now)

    def whole(self) -> list[Violation]:
        try:
            self._strike_and_recover()
        except ChildStartError as error:
            return [Violation("child failed", f"{error}; run this point by itself to see its output")]
        except (StuckError, TimeoutError) as error:
            return [Violation("stuck", str(error) or f"no end within {RUN_LIMIT_S:g} s")]
        self.kill_all()
        if failed := [child for child in self.children if child.failed]:
            return [
                Violation("child failed", f"{child.name} ended on its own; run this point by itself to see its output")
                for child in failed
            ]
        if self.point is not None and self.struck is None:
            return [Violation(UNREACHED, f"the first process finished without crossing {self.point.label}")]
        if self.left_a_trace:
            return [Violation(UNREACHED, f"transaction {self.lost_id} left a trace: its id was not assigned again")]
        if self.run_database.failover is not None and self.run_database.failover.sent_in_quarantine:
            return [
                Violation(SENT_IN_QUARANTINE, "a send began after the failover, before the quarantine was released")
            ]
        read = cast(asyncpg.Connection, self.run_database.owner)
        return self.explorer.wait(judge(self.scenario, self.simulators, read, self.run_database.probe))

    @property
    def left_a_trace(self) -> bool:
        """Whether the lost transaction's id was not assigned again, so that the run shows less than it should."""
        return self.lost_id is not None and not self.id_reused

    def kill_all(self) -> None:
        for child in self.children:
            child.kill()

    def resume_replication(self) -> None:
        """Resumes replication after an aborted run: other processes could not commit."""
        if self.failing_over is not None and self.run_database.cluster is not None:
            self.failing_over.cancel()
            if self.run_database.failover is None:
                self.run_database.cluster.resume_replication()

    def _strike_and_recover(self) -> None:
        first = self._child(FIRST)
        if self._to_rest(first, FIRST, self._trap) is TurnEnd.DONE or self.point is None or self.struck is None:
            return self._let_go(first)
        if first.exited:
            self._wait(self.run_database.end_sessions(first.name))
        if options_of(self.scenario).wipes:
            self._wait(self.run_database.probe.wipe())
        self._wait(self.run_database.probe.advance_leases(self.schedules[FIRST].longest_lease_s + 1))
        successor = self._child(SUCCESSOR)
        match self.point.mode:
            case Mode.BEFORE | Mode.AFTER:
                self._to_rest(successor, SUCCESSOR, _go)
            case Mode.LATE:
                self._land_late(first, successor)
            case Mode.STOPPED:
                self._to_rest(successor, SUCCESSOR, _go)
                first.wake()
                self._wait(first.turn(None, _go, self.simulators))
                self._let_go(first)
                self._to_rest(successor, SUCCESSOR, _go)
        return self._let_go(successor)

    def _let_go(self, child: Child) -> None:
        if not child.exited:
            self._wait(child.leave())

    def _land_late(self, first: Child, successor: Child) -> None:
        """The first child's request arrives after its successor's next one on the same channel."""
        schedule, overtaken = self.schedules[SUCCESSOR], False

        async def land() -> None:
            schedule.under_way = None
            if not first.exited:
                first.wake()
                await first.turn(None, _go, self.simulators)
                await self.run_database.end_sessions(first.name)

        async def overtake(at: AtCrossing) -> Verdict:
            nonlocal overtaken
            if overtaken:
                await land()
            assert self.struck is not None
            # The sweep that frees the message does not count as the successor.
            overtaken = overtaken or (at.channel is self.struck.channel and not self.sweeping)
            return Verdict()

        schedule.under_way = land
        self._to_rest(successor, SUCCESSOR, overtake)
        if not first.exited:
            self._wait(land())
            self._to_rest(successor, SUCCESSOR, _go)

    def _to_rest(self, child: Child, number: int, judge_crossing: CrossingHandler) -> TurnEnd:
        if child.exited:
            return TurnEnd.GONE
        return self._wait(self._drive(child, self.schedules[number], judge_crossing))

    async def _drive(self, child: Child, schedule: Schedule, judge_crossing: CrossingHandler) -> TurnEnd:
        schedule.steps = 0
        while (command := await schedule.next_command()) is not None:
            self.sweeping = isinstance(command, Reap)
            ended, done = await child.turn(command, judge_crossing, self.simulators)
            await self._end_failover()
            if ended is not TurnEnd.DONE:
                return ended
            schedule.held_up = self.sweeping and not done.worked
            self._note(schedule, command, done)
        return TurnEnd.DONE

    def _note(self, schedule: Schedule, command: Command, done: CommandDone) -> None:
        match command:
            case Tick() if not done.worked:
                # A janitor that could not reach its server ticks again.
                schedule.ticked.discard(command.janitor)
            case Notice() if self.run_database.failover is not None:
                self.run_database.failover.noticed = done.worked
            case Release() if self.run_database.failover is not None:
                self.run_database.failover.released = done.worked

    async def _trap(self, at: AtCrossing) -> Verdict:
        await self._end_failover()
        if at.carried_out:
            await self._crash_server(None)
            return Verdict()
        self.counts[at.message, at.site] += 1
        label = Label(at.message, at.site, self.counts[at.message, at.site])
        self.crossed.append(Crossing(label, at.reads, commits=at.channel is Channel.STORE and not at.reads))
        if self.point is None or label != self.point.label:
            return Verdict()
        self.struck = at
        match self.point.mode:
            case Mode.BEFORE:
                return Verdict(CrossingAction.DIE)
            case Mode.AFTER:
                return Verdict(CrossingAction.DIE_AFTER)
            case Mode.LATE:
                return Verdict(CrossingAction.DIE_AFTER, stop=True)
            case Mode.STOPPED:
                return Verdict(CrossingAction.GO, stop=True, asleep_s=self.schedules[FIRST].longest_lease_s + 1)
            case Mode.SERVER_CRASH_BEFORE | Mode.FAILOVER_BEFORE:
                self.lost_id = await self._open_transaction_id()
                await self._crash_server(self.lost_id)
                return Verdict(transaction_id=self.lost_id)
            case Mode.SERVER_CRASH_AFTER | Mode.FAILOVER_AFTER:
                return Verdict(CrossingAction.LOSE_ANSWER, transaction_id=await self._open_transaction_id())
            case Mode.FAILOVER_UNREPLICATED:
                assert self.run_database.cluster is not None, "a failover needs a cluster"
                self.run_database.cluster.hold_replication()
                self.lost_id = await self._open_transaction_id()
                self.failing_over = asyncio.create_task(self._fail_over_in_commit(self.children[0]))
                return Verdict(transaction_id=self.lost_id)

    async def _fail_over_in_commit(self, first: Child) -> None:
        """Fails over once the COMMIT waits for the standby, or the process has continued without a commit. The process
        is stopped meanwhile: otherwise it would connect to the new primary before others have written there."""

        async def waits_or_went_on() -> bool:
            return self.went_on or await waits_for_standby(self.run_database.superuser, first.name)

        await eventually(waits_or_went_on, WAITS_WITHIN_S, "a COMMIT waiting for the standby")
        first.stop()
        # A statement outside a transaction gets its id only now.
        self.lost_id = self.lost_id or await self._open_transaction_id()
        await self._crash_server(self.lost_id)
        first.wake()

    async def _end_failover(self) -> None:
        if self.failing_over is not None:
            self.went_on = True
            await self.failing_over
            self.failing_over = None

    async def _open_transaction_id(self) -> int | None:
        return await open_transaction_id(self.run_database.superuser, self.children[0].name)

    async def _crash_server(self, lost_id: int | None) -> None:
        """Crashes the server while the process waits for a verdict; it reconnects when the server is back and others
        have written."""
        self.id_reused = await self.run_database.crash_server(lost_id)
        if options_of(self.scenario).wipes:
            await self.run_database.probe.wipe()

    def _child(self, number: int) -> Child:
        child = self.explorer.fork(self.scenario, self.run_database, number, self.ablate)
        self.children.append(child)
        janitors = self._wait(child.ready())
        self.schedules[number] = self.explorer.schedule(
            self.scenario, self.run_database, self.simulators, number, janitors
        )
        return child

    def _wait(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        return self.explorer.wait(work)


async def _go(at: AtCrossing) -> Verdict:
    return Verdict()
