"""Call budgets of vendors, which a client checks before every call."""

from typing import Protocol


class Budget(Protocol):
    """A budget of calls that all our processes share."""

    async def wait_turn(self, cost: int = 1) -> None:
        """Returns when the call may be sent. Raises NotSent if that would take too long."""
        ...

    async def penalise(self, seconds: float) -> None:
        """Blocks all calls for `seconds` after the vendor has reported too many. Never raises: the caller is processing
        a response."""
        ...


class Unlimited:
    """No limit, for vendors without one and for tests."""

    async def wait_turn(self, cost: int = 1) -> None:
        return None

    async def penalise(self, seconds: float) -> None:
        return None
