"""Child processes of the explorer: forked, served, stopped, resumed, reaped."""

import asyncio
import ctypes
import os
import signal
import socket
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from payonce.kit.http.failures import BodyTooLarge, Broken
from payonce.kit.http.inprocess import InProcessTransport
from payonce.kit.http.response import Attempt
from payonce.kit.http.target import parse_url
from payonce.kit.http.transport import Outgoing
from payonce.testing.crash.child import ChildConfig, live, quiet
from payonce.testing.crash.scenario import Scenario, Simulators
from payonce.testing.crash.wire import (
    AtCrossing,
    ChildReady,
    Command,
    CommandDone,
    Leave,
    ParentEnd,
    VendorRequest,
    VendorResponse,
    Verdict,
)

ANSWER_MAX_BYTES: Final = 16 * 1024 * 1024
_KILL_WITH_PARENT: Final = 1
_EXIT_FAILED: Final = 70

CrossingHandler = Callable[[AtCrossing], Awaitable[Verdict]]
"""Decides what a child does at the crossing that it has reached."""


class TurnEnd(StrEnum):
    """How a child's turn ended."""

    DONE = "done"
    STOPPED = "stopped"
    GONE = "gone"


class ChildStartError(AssertionError):
    """A child ended before it opened the engine."""


@dataclass
class Child:
    """One forked process."""

    name: str
    pid: int
    explorer: ParentEnd
    exited: bool = False
    failed: bool = False
    """Whether it ended on its own, with an error."""

    async def ready(self) -> list[str]:
        """Waits until it has opened the engine; returns the names of its janitors."""
        message = await self.explorer.receive()
        if not isinstance(message, ChildReady):
            self.kill()
            raise ChildStartError(f"{self.name} ended while it started")
        return message.janitors

    async def turn(
        self, command: Command | None, judge: CrossingHandler, simulators: Simulators
    ) -> tuple[TurnEnd, CommandDone]:
        """Sends a command and serves the child until it is done, stopped, or gone.

        Without a command it continues the one that it was stopped in.
        """
        if command is not None:
            await self.explorer.send(command)
        while (message := await self.explorer.receive()) is not None:
            match message:
                case CommandDone():
                    return TurnEnd.DONE, message
                case VendorRequest():
                    await self.explorer.send(await _exchange(message, simulators))
                case AtCrossing():
                    verdict = await judge(message)
                    await self.explorer.send(verdict)
                    if verdict.stop:
                        self._wait_until_stopped()
                        return TurnEnd.STOPPED, CommandDone()
        self.kill()
        return TurnEnd.GONE, CommandDone()

    def _wait_until_stopped(self) -> None:
        """Waits until it is stopped; with WNOWAIT, one that died instead is left to kill()."""
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def stop(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)
        self._wait_until_stopped()

    def wake(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    async def leave(self) -> None:
        await self.explorer.send(Leave())
        while await self.explorer.receive() is not None:
            pass
        self.kill()

    def kill(self) -> None:
        """Kills it if it lives, and waits for its end."""
        if not self.exited:
            self.exited = True
            os.kill(self.pid, signal.SIGKILL)
            _, status = os.waitpid(self.pid, 0)
            self.failed = os.WIFEXITED(status) and os.WEXITSTATUS(status) != 0
            self.explorer.close()


def fork(scenario: Scenario, config: ChildConfig, *, loud: bool = False) -> Child:
    """Forks a child with all modules imported. Call it while no event loop runs, in a process without threads."""
    ours, theirs = socket.socketpair()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        code = _EXIT_FAILED
        try:
            die_with(parent)
            ours.close()
            if not loud:
                quiet()
            live(scenario, config, theirs)
            code = 0
        except BaseException:
            # Shown only when the child's output is; after os._exit nothing else would report it.
            traceback.print_exc()
        finally:
            # Does not close or flush the parent's files.
            os._exit(code)
    theirs.close()
    return Child(config.name, pid, ParentEnd(ours))


async def _exchange(sent: VendorRequest, simulators: Simulators) -> VendorResponse:
    """Forwards a child's request to the simulator, even if the child will not receive the response."""
    application = simulators.get(sent.host)
    if application is None:
        return VendorResponse(0, [], b"", False, f"no simulator for {sent.host}")
    transport = InProcessTransport(application, allow_private=True, resolve=None)
    attempt = Attempt(ANSWER_MAX_BYTES)
    try:
        await transport.exchange(Outgoing(sent.method, parse_url(sent.url), sent.headers, sent.body), attempt)
        headers, body = attempt.finish()
    except (Broken, BodyTooLarge) as error:
        return VendorResponse(0, [], b"", attempt.may_have_left, error.reason)
    finally:
        await asyncio.shield(transport.close())
    # The body is decoded already.
    plain = [(str(name), str(value)) for name, value in headers.items() if name.lower() != "content-encoding"]
    return VendorResponse(attempt.status, plain, body, True)


def die_with(parent: int) -> None:
    """Ends this process with its parent, however that ends."""
    ctypes.CDLL(None).prctl(_KILL_WITH_PARENT, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if os.getppid() != parent:
        os._exit(_EXIT_FAILED)
