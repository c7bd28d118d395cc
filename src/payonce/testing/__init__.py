"""Tools for testing payonce and services built on it: scratch databases, movable clocks, bounded waiting.

A test suite declares `pytest_plugins = ["payonce.testing.plugin"]` and writes

    async def test_renewal_follows_after_a_month(stage: OpenStage) -> None:
        async with stage() as s:
            await s.feed.put([Message(queue="renewals")])
            await s.clock.advance(30 * 86_400)
"""

from typing import TYPE_CHECKING, Any

from payonce.testing.clock import Clock
from payonce.testing.eventually import eventually
from payonce.testing.servers import ScratchDatabase, ScratchServer, Servers
from payonce.testing.stage import OpenStage, Stage, open_stage

if TYPE_CHECKING:
    from payonce.testing.redis_clock import RedisClock

__all__ = [
    "Clock",
    "OpenStage",
    "RedisClock",
    "ScratchDatabase",
    "ScratchServer",
    "Servers",
    "Stage",
    "eventually",
    "open_stage",
]


def __getattr__(name: str) -> Any:
    """Imports RedisClock on first use: the Redis driver is an optional dependency."""
    if name == "RedisClock":
        from payonce.testing.redis_clock import RedisClock

        return RedisClock
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
