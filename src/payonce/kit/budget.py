"""How often a vendor may be called: what a client asks before every call."""

from typing import Protocol


class Budget(Protocol):
    """A share of what the vendor allows all our processes together."""

    async def wait_turn(self, cost: int = 1) -> None:
        """Returns when the call may go out. Raises NotSent when its turn would come too late to wait for."""
        ...

    async def penalise(self, seconds: float) -> None:
        """The vendor said that we call too often: nobody calls for so long. Never fails: an answer is in hand."""
        ...


class Unlimited:
    """For vendors that set no limit, and for tests."""

    async def wait_turn(self, cost: int = 1) -> None:
        return None

    async def penalise(self, seconds: float) -> None:
        return None
