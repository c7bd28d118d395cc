"""Children under the explorer's control: forked, listened to, stopped, woken, exited."""

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
"""Says what a child does at the crossing that it stands before."""


class TurnEnd(StrEnum):
    """How a child's turn ended."""

    DONE = "done"
    STOPPED = "stopped"
    GONE = "gone"


class ChildStartError(AssertionError):
    """A child ended before it had opened the engine."""


@dataclass
class Child:
    """One forked process."""

    name: str
    pid: int
    explorer: ParentEnd
    exited: bool = False
    failed: bool = False
    """It ended by itself, and not because it was told to."""

    async def ready(self) -> list[str]:
        """Returns the names of its janitors when it has opened the engine."""
        said = await self.explorer.receive()
        if not isinstance(said, ChildReady):
            self.kill()
            raise ChildStartError(f"{self.name} did not come to life")
        return said.janitors

    async def turn(
        self, command: Command | None, judge: CrossingHandler, simulators: Simulators
    ) -> tuple[TurnEnd, CommandDone]:
        """Gives a command and serves the child until it has done it, stands still, or is gone.

        Without a command it goes on with the one that it was stopped in.
        """
        if command is not None:
            await self.explorer.send(command)
        while (said := await self.explorer.receive()) is not None:
            match said:
                case CommandDone():
                    return TurnEnd.DONE, said
                case VendorRequest():
                    await self.explorer.send(await _exchange(said, simulators))
                case AtCrossing():
                    verdict = await judge(said)
                    await self.explorer.send(verdict)
                    if verdict.stop:
                        self._wait_until_stopped()
                        return TurnEnd.STOPPED, CommandDone()
        self.kill()
        return TurnEnd.GONE, CommandDone()

    def _wait_until_stopped(self) -> None:
        """Returns when it does, which is at once; WNOWAIT leaves one that died instead for kill()."""
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
        """Waits for its end; kills it if it lives."""
        if not self.exited:
            self.exited = True
            os.kill(self.pid, signal.SIGKILL)
            _, status = os.waitpid(self.pid, 0)
            self.failed = os.WIFEXITED(status) and os.WEXITSTATUS(status) != 0
            self.explorer.close()


def fork(scenario: Scenario, config: ChildConfig, *, loud: bool = False) -> Child:
    """A child that has everything imported. Call it while no event loop runs, in a process without threads."""
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
            # Heard only where it is run aloud; behind os._exit nobody else would tell.
            traceback.print_exc()
        finally:
            # Nothing that the parent has open is closed or flushed from here.
            os._exit(code)
    theirs.close()
    return Child(config.name, pid, ParentEnd(ours))


async def _exchange(sent: VendorRequest, simulators: Simulators) -> VendorResponse:
    """Carries a child's request to the simulator, also when the child will never hear of the answer."""
    application = simulators.get(sent.host)
    if application is None:
        return VendorResponse(0, [], b"", False, f"nobody simulates {sent.host}")
    transport = InProcessTransport(application, allow_private=True, resolve=None)
    attempt = Attempt(ANSWER_MAX_BYTES)
    try:
        await transport.exchange(Outgoing(sent.method, parse_url(sent.url), sent.headers, sent.body), attempt)
        headers, body = attempt.finish()
    except (Broken, BodyTooLarge) as error:
        return VendorResponse(0, [], b"", attempt.may_have_left, error.reason)
    finally:
        await asyncio.shield(transport.close())
    # The body is handed on as unpacked.
    plain = [(str(name), str(value)) for name, value in headers.items() if name.lower() != "content-encoding"]
    return VendorResponse(attempt.status, plain, body, True)


def die_with(parent: int) -> None:
    """Nothing that is forked here outlives the one who forked it, however that ends."""
    ctypes.CDLL(None).prctl(_KILL_WITH_PARENT, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if os.getppid() != parent:
        os._exit(_EXIT_FAILED)
