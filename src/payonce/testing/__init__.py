"""Public: tools for testing services: scratch databases, movable clocks, vendor faults, processes.

A test suite declares `pytest_plugins = ["payonce.testing.plugin"]` and writes

    async def test_renewal_follows_after_a_month(stage: OpenStage) -> None:
        async with stage() as s:
            await s.feed.put([Message(queue="renewals")])
            await s.clock.advance(30 * 86_400)

`payonce.testing.crash` is the crash explorer, `payonce.testing.cluster` a primary with a standby. Names are imported
on first use, so that only `RedisClock` needs the Redis driver.
"""

from typing import TYPE_CHECKING, Final

from payonce.kit.lazy import lazy_names

# Imported at once: the module has the same name, and would replace the function.
from payonce.testing.eventually import eventually

if TYPE_CHECKING:
    from payonce.engine.messages.process import Worker
    from payonce.testing.clock import Clock
    from payonce.testing.faults import Fault, FaultPlan, Odds, Script
    from payonce.testing.faulty import Faulty
    from payonce.testing.processes import Child, Processes
    from payonce.testing.redis_clock import RedisClock
    from payonce.testing.server import serving
    from payonce.testing.servers import ScratchDatabase, ScratchServer, Servers
    from payonce.testing.stage import OpenStage, Stage, open_stage

_HOMES: Final = {
    "payonce.engine.messages.process": "Worker",
    "payonce.testing.clock": "Clock",
    "payonce.testing.faults": "Fault FaultPlan Odds Script",
    "payonce.testing.faulty": "Faulty",
    "payonce.testing.processes": "Child Processes",
    "payonce.testing.redis_clock": "RedisClock",
    "payonce.testing.server": "serving",
    "payonce.testing.servers": "ScratchDatabase ScratchServer Servers",
    "payonce.testing.stage": "OpenStage Stage open_stage",
}
"""The public names by the modules that define them; a module is imported when one of its names is used."""

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)

__all__ = [
    "Child",
    "Clock",
    "Fault",
    "FaultPlan",
    "Faulty",
    "Odds",
    "OpenStage",
    "Processes",
    "RedisClock",
    "ScratchDatabase",
    "ScratchServer",
    "Script",
    "Servers",
    "Stage",
    "Worker",
    "eventually",
    "open_stage",
    "serving",
]
