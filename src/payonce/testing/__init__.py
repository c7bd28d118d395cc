"""What payonce is tested with, and what its users test with: scratch databases, movable clocks, bounded waiting.

A test suite says `pytest_plugins = ["payonce.testing.plugin"]` and writes

    async def test_renewal_follows_after_a_month(stage: OpenStage) -> None:
        async with stage() as s:
            await s.feed.put([Message(queue="renewals")])
            await s.clock.advance(30 * 86_400)
"""

from payonce.testing.clock import Clock
from payonce.testing.eventually import eventually
from payonce.testing.redis_clock import RedisClock
from payonce.testing.servers import ScratchDatabase, ScratchServer, Servers
from payonce.testing.stage import OpenStage, Stage, open_stage

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
