"""Crashes or stops one process after every command of a path, and compares the contents of Redis with what was put.

The oracle: every message is handled, or exactly once in the main list, `:processing`, `:delayed` or `:failed`; it is
never lost and never duplicated; and no process releases a message that another one holds.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.redis.fault_proxy import FaultKind, FaultProxy

ROUNDS_MAX = 8
"""Rounds of recovery after which everything must have finished."""
TICKS_MAX = 20
STRIKE_LIMIT_S = 45.0
NOTHING = "no_message"
SUCCESS = "success"
PARKED = "failed"

Handle = Callable[[Mapping[str, Any]], Awaitable[None]]


def name_in(message: Mapping[str, Any]) -> str:
    """Of an envelope or a raw object."""
    return str(message.get("payload", message)["name"])


class QueueClient(Protocol):
    """The operations of one process on the queue."""

    async def tick(self, handle: Handle) -> str:
        """Claims, runs and settles one message; returns the result, or that there was none."""
        ...

    async def pump(self) -> object:
        """Moves due messages to the main list."""
        ...

    async def sweep(self) -> object:
        """Releases messages with expired leases."""
        ...

    async def close(self) -> None: ...


class Side(Protocol):
    """An implementation of queues in Redis, on an empty server."""

    async def client(self, url: str, name: str) -> QueueClient: ...

    async def put(self, names: Sequence[str], *, raw: bool) -> None:
        """Puts envelopes, or pushes raw objects: for those the same name means the same bytes."""
        ...

    async def end_leases(self) -> None: ...

    async def let_delays_pass(self) -> None: ...

    async def places(self) -> Mapping[str, Sequence[str]]:
        """The names in the main list, `processing`, `delayed` and `failed`."""
        ...

    async def claimable(self) -> bool: ...

    async def holder(self, name: str) -> str | None:
        """The owner of the lock of a message in `:processing`."""
        ...

    async def inconsistencies(self) -> Sequence[str]:
        """Inconsistencies in Redis, regardless of the messages."""
        ...


@dataclass
class Tally:
    """The test's own records, independent of Redis."""

    put: Counter[str] = field(default_factory=Counter)
    in_doubt: set[str] = field(default_factory=set)
    """Put by a process that may have died: either all exist, or none."""
    failures_left: Counter[str] = field(default_factory=Counter)
    gives_up: set[str] = field(default_factory=set)
    """Parked by their first run."""
    succeeded: Counter[str] = field(default_factory=Counter)
    """Completed runs of the handler."""
    acknowledged: Counter[str] = field(default_factory=Counter)
    """Messages that a process has settled as successful."""

    async def handle(self, message: Mapping[str, Any]) -> None:
        name = name_in(message)
        if name in self.gives_up:
            self.gives_up.remove(name)
            raise LookupError("never")
        if self.failures_left[name] > 0:
            self.failures_left[name] -= 1
            raise ArithmeticError("not now")
        self.succeeded[name] += 1

    async def tick(self, client: QueueClient, handle: Handle | None = None) -> str:
        came_to: list[str] = []

        async def noting(message: Mapping[str, Any]) -> None:
            came_to.append(name_in(message))
            await (handle or self.handle)(message)

        ended = await client.tick(noting)
        if ended == SUCCESS:
            self.acknowledged[came_to[-1]] += 1
        return ended


Act = Callable[[QueueClient, Tally], Awaitable[object]]


@dataclass(frozen=True)
class Path:
    """The actions of a process until its crash, and the initial state."""

    name: str
    act: Act
    put: Sequence[str] = ("a",)
    raw: bool = False
    failures: Mapping[str, int] = field(default_factory=dict)
    gives_up: Sequence[str] = ()
    before: Act | None = None
    """Done by another process, without a crash."""
    abandoned_before: int = 0
    """The number of processes that claimed the first message and died, one after the other, and whose leases have
    ended."""
    swept_before: bool = False
    delays_pass_before: bool = False
    pumped_before: bool = False
    held_by_another: bool = False
    """While the process acts, another one runs the handler of the first message."""


@dataclass(frozen=True)
class Violation:
    """A violation found after one fault."""

    path: str
    fault: FaultKind
    behind: tuple[str, ...]
    """The commands executed before the fault."""
    what: str

    def __str__(self) -> str:
        return f"{self.path}, {self.fault} behind {' '.join(self.behind) or 'nothing'}: {self.what}"


OpenSide = Callable[[], AbstractAsyncContextManager[Side]]


async def explore(open_side: OpenSide, port: int, path: Path) -> list[Violation]:
    """Every fault after every command of the path, each on an empty server."""
    found, commands = await strike(open_side, port, path, FaultKind.NONE, 0)
    assert commands, f"{path.name} sends no command: there is nothing to interrupt"
    for fault in (FaultKind.DEATH, FaultKind.STOP):
        for behind in range(len(commands) + 1):
            found += (await strike(open_side, port, path, fault, behind))[0]
    return found


async def strike(
    open_side: OpenSide, port: int, path: Path, fault: FaultKind, behind: int
) -> tuple[list[Violation], tuple[str, ...]]:
    """One run of the path with one fault; returns the violations, and the commands of the interrupted process."""
    async with asyncio.timeout(STRIKE_LIMIT_S), open_side() as side, FaultProxy.open(port) as proxy:
        run = _Strike(side, path, proxy, fault, behind)
        await run.prepare()
        try:
            await run.whole()
        finally:
            await run.close()
        said = tuple(proxy.carried)
        behind_what = said if fault is FaultKind.NONE else said[:behind]
        return [Violation(path.name, fault, behind_what, what) for what in run.found], said


@dataclass
class _Strike:
    side: Side
    path: Path
    proxy: FaultProxy
    fault: FaultKind
    behind: int
    tally: Tally = field(default_factory=Tally)
    found: list[str] = field(default_factory=list)
    opened: list[QueueClient] = field(default_factory=list)

    async def prepare(self) -> None:
        direct = self.proxy.upstream_url
        self.victim, self.other = await self._open(self.proxy.url, "victim"), await self._open(direct, "other")
        await self.side.put(self.path.put, raw=self.path.raw)
        self.tally.put.update(self.path.put)
        self.tally.failures_left.update(self.path.failures)
        self.tally.gives_up.update(self.path.gives_up)
        if self.path.before is not None:
            await self.path.before(await self._open(direct, "earlier"), self.tally)
        for death in range(self.path.abandoned_before):
            if death:
                await self.other.sweep()
                await self.side.let_delays_pass()
                await self.other.pump()
            await self._abandon(await self._open(direct, "dead"))
            await self.side.end_leases()
        if self.path.swept_before:
            await self.other.sweep()
        if self.path.delays_pass_before:
            await self.side.let_delays_pass()
        if self.path.pumped_before:
            await self.other.pump()

    async def whole(self) -> None:
        beside = None
        if self.path.held_by_another:
            beside = await self._hold(await self._open(self.proxy.upstream_url, "beside"))
        self.proxy.strike(self.fault, self.behind)
        acting = asyncio.ensure_future(self.path.act(self.victim, self.tally))
        falling = asyncio.create_task(self.proxy.struck.wait())
        await asyncio.wait({acting, falling}, return_when=asyncio.FIRST_COMPLETED)
        falling.cancel()
        if self.fault is FaultKind.DEATH and self.proxy.struck.is_set():
            acting.cancel()
            await asyncio.wait({acting})
            await self._no_copy_is_lost_or_doubled()
        elif self.fault is FaultKind.STOP and self.proxy.struck.is_set():
            await self._finish(beside)
            beside = None
            await self._taken_over_meanwhile(acting)
        else:
            await acting
        await self._finish(beside)
        await self._to_rest()

    async def close(self) -> None:
        for client in self.opened:
            with suppress(OSError):
                await client.close()

    async def _taken_over_meanwhile(self, acting: "asyncio.Future[object]") -> None:
        """Leases end, and another process has taken over and runs the handler when the stopped one continues."""
        await self._recover_once()
        successor = await self._hold(self.other)
        self.proxy.wake()
        await asyncio.wait({acting})
        if successor is not None:
            name = successor.name
            if (holder := await self.side.holder(name)) != "other":
                self.found.append(f"the lock of {name} is {holder or 'nobody'}'s, while another process has it in hand")
            await self._no_copy_is_lost_or_doubled()
        await self._finish(successor)

    async def _hold(self, client: QueueClient) -> "_Held | None":
        """Another process claims a message and stays in its handler; None if there was nothing to claim."""
        held = _Held()
        if not await self.side.claimable():
            return None

        async def handle(message: Mapping[str, Any]) -> None:
            held.name = name_in(message)
            held.inside.set()
            await held.let_go.wait()
            await self.tally.handle(message)

        held.run = asyncio.ensure_future(self.tally.tick(client, handle))
        inside = asyncio.create_task(held.inside.wait())
        await asyncio.wait({held.run, inside}, return_when=asyncio.FIRST_COMPLETED)
        inside.cancel()
        if held.inside.is_set():
            return held
        await held.run
        return None

    async def _abandon(self, client: QueueClient) -> None:
        held = await self._hold(client)
        assert held is not None, f"{self.path.name}: there is nothing to abandon"
        held.run.cancel()
        await asyncio.wait({held.run})

    async def _finish(self, held: "_Held | None") -> None:
        if held is not None:
            held.let_go.set()
            await held.run

    async def _recover_once(self) -> None:
        await self.side.end_leases()
        await self.other.sweep()
        await self.side.let_delays_pass()
        await self.other.pump()

    async def _to_rest(self) -> None:
        for _ in range(ROUNDS_MAX):
            await self._recover_once()
            for _ in range(TICKS_MAX):
                if not await self.side.claimable() or await self.tally.tick(self.other) == NOTHING:
                    break
            places = await self.side.places()
            if not any(names for place, names in places.items() if place != PARKED):
                break
        else:
            self.found.append(f"not at rest: {dict(places)}")
        self.found += await self.side.inconsistencies()
        for name, put in self.tally.put.items():
            ended = self.tally.acknowledged[name] + Counter(places[PARKED])[name]
            unheard = max(0, self.tally.succeeded[name] - self.tally.acknowledged[name])
            if ended > put:
                self.found.append(f"{name} was put {put} times and ended {ended} times")
            if ended + unheard < put and name not in self.tally.in_doubt:
                self.found.append(f"{name} was put {put} times and is lost")

    async def _no_copy_is_lost_or_doubled(self) -> None:
        places = await self.side.places()
        copies = Counter(name for names in places.values() for name in names)
        self.found += await self.side.inconsistencies()
        if len({copies[name] for name in self.tally.in_doubt}) > 1:
            self.found.append(f"a batch is incomplete: {dict(places)}")
        for name, put in self.tally.put.items():
            if copies[name] > put:
                self.found.append(f"{copies[name]} copies of {name}, put {put} times: {dict(places)}")
            if copies[name] + self.tally.succeeded[name] < put and name not in self.tally.in_doubt:
                self.found.append(f"{name} is lost, put {put} times: {dict(places)}")

    async def _open(self, url: str, name: str) -> QueueClient:
        client = await self.side.client(url, name)
        self.opened.append(client)
        return client


@dataclass
class _Held:
    name: str = ""
    inside: asyncio.Event = field(default_factory=asyncio.Event)
    let_go: asyncio.Event = field(default_factory=asyncio.Event)
    run: "asyncio.Future[str]" = field(init=False)
