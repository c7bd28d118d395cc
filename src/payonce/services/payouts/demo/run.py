"""The demonstration `payouts`: an exchange on a bad day, a chain that forgets, and every process killed in turn."""

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from payonce.cli.demo.disruption import DisruptedRun, environment_of, log_file, progress_bar, scratch_app, too_few_kills
from payonce.cli.output import table

if TYPE_CHECKING:
    from payonce.app.addresses import Addresses
    from payonce.app.process import App
    from payonce.cli.demo.fleet import Fleet
    from payonce.engine.messages.transaction import Reader
    from payonce.services.payouts.demo.orders import DemoOrder, WebhookCaller
    from payonce.services.payouts.demo.simulators import DemoSimulators, SimulatorOptions
    from payonce.services.payouts.demo.verdict import Verdict
    from payonce.settings import Settings
    from payonce.testing import Clock

PAYOUTS: Final = 200
EXCHANGE_FAULTS: Final = 0.3
CHAIN_FAULTS: Final = 0.1
REFUNDED, VERIFIED, FAILED = 0.04, 0.015, 0.015
"""Shares of exchanges with a bad end."""
OUTAGE_AT, OUTAGE_S = 0.25, 120.0
"""When the exchange goes down, as a share of the work done, and for how much simulated time."""
KILLS, FIRST_KILL, LAST_KILL = 12, 0.03, 0.8
CALLS_AT_ONCE: Final = 4
TICK_S: Final = 0.2
MOVED_S, MOVED_BEHIND_S, MOVED_MAX_S = 10.0, 2.0, 60.0
"""Seconds by which each tick advances the clock, so that backoffs of a minute pass in seconds: fewer while the
processes lag behind, more while there is nothing to do."""
BACKLOG: Final = 24
"""Of messages that are due and not begun. A few are due for long without harm: those whose task a kill has lost."""
LATE_S: Final = 300.0
"""Maximum delay of payment checks: since all payments are polled, the delay counts and not the number."""
FOLLOW_QUEUE: Final = "payouts-hostpay-follow"
KEEPING_QUEUE: Final = "payouts-keeping"
"""Scheduled jobs, which the run does not wait for."""
LEASES_S: Final = 61.0
"""The work of a killed process waits for its leases to expire, so each kill advances the lease clock."""
ANSWER_S: Final = 1.0
SLOTS: Final = 32
"""Runs spend most of their time waiting for external systems."""
NAMED_MAX: Final = 5
LIMIT_S, STALLED_S = 540.0, 120.0
"""Maximum duration of a run, and of a stall without another ended payout. Unfinished payouts then count as lost."""


@dataclass(frozen=True)
class Report:
    seed: int
    verdict: "Verdict"
    faults: Mapping[str, int]
    repeated: int
    signed_again: int
    wrong: Sequence[str]
    disrupted: DisruptedRun

    @property
    def log_path(self) -> Path:
        return self.disrupted.log_path

    def figures(self) -> dict[str, Any]:
        verdict, counted = self.verdict, {state.value: count for state, count in self.verdict.states.items()}
        return {
            "payouts": verdict.asked,
            **{state: counted.pop(state, 0) for state in SHOWN},
            "other": sum(counted.values()),
            "double_paid": len(verdict.double_paid),
            "lost": len(verdict.lost),
            "unexplained": {code: f"{amount.normalize():f}" for code, amount in verdict.unexplained.items()},
            "webhooks_repeated": self.repeated,
            "webhooks_signed_again": self.signed_again,
            "faults": dict(self.faults),
            "kills": self.disrupted.kills,
            "restarts": self.disrupted.restarts,
            "seconds": round(self.disrupted.seconds, 1),
            "seed": self.seed,
        }

    def complaints(self) -> list[str]:
        verdict = self.verdict
        found = list(self.wrong)
        if verdict.lost:
            found.append(f"{len(verdict.lost)} payouts are lost: {_named(verdict.lost)}")
        if verdict.double_paid:
            found.append(f"{len(verdict.double_paid)} were paid more than once: {_named(verdict.double_paid)}")
        found += [
            f"{amount:f} {code} are unexplained: our ledger and the vendors' books differ"
            for code, amount in verdict.unexplained.items()
            if amount
        ]
        found += [f"broken: {words}" for words in verdict.broken]
        if not self.faults:
            found.append("no call went wrong, so nothing was proven")
        return found + too_few_kills(self.disrupted.kills)

    def rendered(self) -> Any:
        figures = self.figures()
        figures["faults"] = sum(self.faults.values())
        figures["unexplained"] = ", ".join(f"{amount} {code}" for code, amount in figures["unexplained"].items())
        rows = [(name, figure, MEANINGS[name]) for name, figure in figures.items()]
        return table("Every payout accounted for", ("figure", "", "meaning"), rows, right=("",))


def _named(payouts: Sequence[str]) -> str:
    return "; ".join(payouts[:NAMED_MAX]) + ("; …" if len(payouts) > NAMED_MAX else "")


SHOWN: Final = ("finished", "held", "accumulating", "review", "refunded")
MEANINGS: Final = {
    "payouts": "ordered by signed webhooks",
    "finished": "the client has the money, once, by the books of exchange and chain",
    "held": "wait for an operator: the exchange refused the address, or verifies the origin of the money",
    "accumulating": "too small for the exchange; wait for more payouts of the same client",
    "review": "wait for an operator: the exchange took the money and failed, or refunded too little",
    "refunded": "paid back to the subscriber",
    "other": "none of these",
    "double_paid": "paid more than once, by the books of exchange and chain",
    "lost": "not in the state that its input and the exchange imply, or paid less than recorded",
    "unexplained": "differences between our ledger and the vendors' books",
    "webhooks_repeated": "sent twice, without effect",
    "webhooks_signed_again": "too old on arrival, signed and sent again",
    "faults": "injected failures of calls to exchange and chain",
    "kills": "processes killed with SIGKILL at work, including the Cloud Tasks server",
    "restarts": "processes restarted",
    "seconds": "from the first process to the last payout",
    "seed": "of the orders, the faults and the kills",
}


async def demonstrate(settings: "Settings", seed: int, size: int | None) -> Report:
    from payonce.kit.http import HttpClient
    from payonce.services.payouts.demo.orders import WebhookCaller, seeded_orders
    from payonce.services.payouts.demo.processes import open_fleet
    from payonce.services.payouts.demo.simulators import open_simulators
    from payonce.services.payouts.demo.verdict import judge
    from payonce.testing import Clock

    orders = seeded_orders(size or PAYOUTS, seed)
    async with (
        scratch_app(settings) as (app, addresses),
        open_simulators(_simulator_options(seed)) as world,
        Clock.open(addresses.owner) as clock,
    ):
        _set_up(world)
        started = time.monotonic()
        with log_file() as log_path, open_fleet(_environment(addresses, world), log_path) as fleet:
            orchestrator = fleet.urls["payouts.orchestrator"]
            async with HttpClient("payonce", orchestrator, allow_private=True) as http:
                caller = WebhookCaller(http, world.signing_key, world.clock)
                work = _Run(app, world, clock, fleet, orders, caller, random.Random(seed))
                await work.through()
            seconds = time.monotonic() - started
        await world.deliver()
        verdict = await judge(app.read, world, orders)
        disrupted = DisruptedRun(fleet.kills, 0, fleet.restarts, seconds, log_path)
        counts = caller.repeated, caller.signed_again
        return Report(seed, verdict, world.faults(), *counts, caller.wrong, disrupted)


class StallTimer:
    """Stops a run that makes no progress, while a busy machine may take its time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._done = 0
        self._began = self._moved = clock()

    def lasts(self, done: int) -> bool:
        now = self._clock()
        if done != self._done:
            self._done, self._moved = done, now
        return now - self._began < LIMIT_S and now - self._moved < STALLED_S


@dataclass
class _Run:
    app: "App"
    world: "DemoSimulators"
    clock: "Clock"
    fleet: "Fleet"
    orders: "Sequence[DemoOrder]"
    caller: "WebhookCaller"
    chance: random.Random
    was_down: bool = False

    async def through(self) -> None:
        """Runs until every payout has ended or the time is up."""
        done, timer = 0, StallTimer()
        step = (LAST_KILL - FIRST_KILL) / (KILLS - 1)
        kills = [FIRST_KILL + step * number for number in range(KILLS)]
        calling = asyncio.create_task(self._call())
        try:
            with progress_bar(len(self.orders)) as show_progress:
                while timer.lasts(done):
                    done = await self._done()
                    show_progress(done, self.fleet.kills)
                    if calling.done():
                        calling.result()
                        if done == len(self.orders):
                            return
                    await self._disrupt(done / len(self.orders), kills)
                    self.fleet.restore()
                    await self._go_on()
                    await asyncio.sleep(TICK_S)
        finally:
            calling.cancel()
            await asyncio.gather(calling, return_exceptions=True)

    async def _call(self) -> None:
        waiting = list(self.orders)

        async def one_after_another() -> None:
            while waiting:
                await self.caller.order(waiting.pop(), self.chance)

        await asyncio.gather(*(one_after_another() for _ in range(CALLS_AT_ONCE)))

    async def _disrupt(self, progress: float, kills: list[float]) -> None:
        from payonce.queues.cloudtasks.depths import SUSPICIOUS

        if progress >= OUTAGE_AT and not self.was_down:
            self.world.changenow.take_down(OUTAGE_S)
            self.was_down = True
        if not kills or progress < kills[0] or await self.app.read.fetchval(ALONE, SUSPICIOUS):
            return
        if self.fleet.kill(await _busy(self.app.read), self.chance):
            kills.pop(0)
            await self.clock.advance_leases(LEASES_S)

    async def _go_on(self) -> None:
        """Advances the clocks of payonce and of the simulators."""
        seconds = _moved_s(*await self.app.read.fetchrow(WAITING, KEEPING_QUEUE, FOLLOW_QUEUE))
        await self.clock.advance(seconds)
        self.world.clock.advance(seconds)
        await self.world.carry()

    async def _done(self) -> int:
        from payonce.services.payouts.demo.orders import Kind
        from payonce.services.payouts.demo.verdict import undecided

        small = [order.payment_id for order in self.orders if order.kind is Kind.SMALL]
        stopped = list(undecided(self.world.changenow.settle_all()))
        done: int = await self.app.read.fetchval(DONE, small, stopped)
        return done


DONE: Final = """
    select count(*) from payouts.payouts p
    where p.state in ('finished', 'rejected', 'refunded')
       or (p.state = 'accumulating' and p.payment_id = any($1))
       or (p.state in ('held', 'review') and not exists (
            select from payouts.shares h join payouts.swaps s on s.id = h.swap_id
            where h.payout_id = p.id and (s.state = 'paying' or (s.state = 'paid_in' and s.cn_api_id <> all($2)))))
"""
"""A payout in review may have other parts under way; the run waits for those."""
ALONE: Final = """
    select exists (select from payonce.messages
            where running_alone or (state = 'alone' and ready_at <= payonce.due_now()))
        or exists (select from payonce.outbox where state <> 'parked' and (running_alone or run_crashes >= $1))
"""
"""Messages that were running at two kills run isolated, to show whether they cause the crashes. A kill during such a
run would look like the proof, and the payout would go to review."""
WAITING: Final = """
    select count(*) filter (where state = 'ready' and ready_at <= payonce.due_now() and queue <> $2) as due,
        extract(epoch from payonce.due_now() - min(ready_at) filter (where state = 'ready' and queue = $2))::float8
            as late_s,
        count(*) filter (where state = 'leased' or ready_at <= payonce.due_now()) as at_work,
        extract(epoch from min(ready_at) filter (where state = 'ready') - payonce.due_now())::float8 as next_s
    from payonce.live_messages where queue <> $1 and state <> 'parked'
"""


def _moved_s(due: int, late_s: float | None, at_work: int, next_s: float | None) -> float:
    """Seconds to advance: to the next due message if nothing is due, slowly while the processes lag behind, as
    otherwise exchanges would expire unpaid on a busy machine."""
    if due > BACKLOG or (late_s or 0.0) > LATE_S:
        return MOVED_BEHIND_S
    if at_work or next_s is None:
        return MOVED_S
    return min(max(next_s, MOVED_S), MOVED_MAX_S)


async def _busy(read: "Reader") -> dict[int, int]:
    """The number of messages that each process holds now, by process id."""
    rows = await read.fetch(
        """
        select worker, count(*) as held from (
            select worker from payonce.outbox where held_until > payonce.lease_now()
            union all select worker from payonce.messages where state = 'leased') as held
        where worker is not null group by worker
        """
    )
    return {int(row["worker"].split("-")[-2]): row["held"] for row in rows}


def _simulator_options(seed: int) -> "SimulatorOptions":
    from payonce.services.payouts.demo.simulators import SimulatorOptions
    from payonce.vendors.changenow.fates import Fates
    from payonce.vendors.evm.chain import Conditions, Fate

    fates = Fates(seed, fail=FAILED, refund=REFUNDED, verify=VERIFIED)
    conditions = Conditions(seed, {Fate.FORGOTTEN: 0.05, Fate.STUCK: 0.02, Fate.OLD_WINS: 0.02}, reorg_share=0.05)
    return SimulatorOptions(seed, EXCHANGE_FAULTS, CHAIN_FAULTS, fates, conditions=conditions)


def _set_up(world: "DemoSimulators") -> None:
    """Sets the exchange's range for the coin of large payouts."""
    from decimal import Decimal

    from payonce.services.payouts.demo.orders import LARGE_COIN
    from payonce.vendors.changenow.port import Pair

    world.changenow.set_range(Pair("eth", "eth", *LARGE_COIN), Decimal("0.002"), Decimal("0.6"))


def _environment(addresses: "Addresses", world: "DemoSimulators") -> dict[str, str]:
    ours = {"CHANGENOW_TIMEOUT_S": f"{ANSWER_S:g}", "PAYONCE_SLOTS": str(SLOTS)}
    return {**environment_of(addresses), **world.environment, **ours}
