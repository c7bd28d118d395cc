"""The runs of a worker, and the gate that allows new ones."""

import asyncio
import time
import traceback
from dataclasses import dataclass
from datetime import datetime, timedelta

from payonce.engine.messages.model import Claim


@dataclass(eq=False, slots=True)
class Run:
    """One claimed message in this process. Deadlines count from before the claim was sent."""

    claim: Claim
    renewed_at: float
    started_at: float
    task: asyncio.Task[None] | None = None
    cancelled_because: str | None = None
    cancelled_at: float = 0.0
    lost: bool = False
    """Its lease has ended, as far as this process can tell."""
    passed_on: bool = False
    """The store says that it belongs to another claim: there is nothing left to settle."""

    @property
    def store_now(self) -> datetime:
        """The store's due clock, estimated without a request."""
        return self.claim.claimed_at + timedelta(seconds=time.monotonic() - self.started_at)


@dataclass
class Gate:
    """Closed while a suspected message runs isolated, and for good when the process stops."""

    stopping: bool = False
    closed: bool = False

    @property
    def open(self) -> bool:
        return not (self.stopping or self.closed)


def describe_error(error: BaseException) -> str:
    """The exception and where it was raised, without local values."""
    frames = traceback.extract_tb(error.__traceback__)
    path = " < ".join(
        f"{frame.name} ({frame.filename.rsplit('/', 1)[-1]}:{frame.lineno})" for frame in reversed(frames[-6:])
    )
    return f"{type(error).__name__}: {error} [{path}]"
