"""What many pages show and many people look at: loaded for all of them, at most so often."""

from collections.abc import Sequence

from payonce.console.desk import Desk
from payonce.console.fresh import Fresh
from payonce.console.glance import Glance, glance
from payonce.engine.effects.meter import Moved, moved

METER_TIMES = 15
"""The meter adds up a day of effects, so it is kept so many times longer than the rest."""


class Board:
    def __init__(self, desk: Desk, keep_s: float) -> None:
        self._glance: Fresh[Glance] = Fresh(lambda: glance(desk), keep_s)
        self._meter: Fresh[list[Moved]] = Fresh(lambda: moved(desk.read), keep_s * METER_TIMES)

    async def glance(self) -> Glance:
        return await self._glance.get()

    async def meter(self) -> Sequence[Moved]:
        return await self._meter.get()

    def forget(self) -> None:
        """After a change, whoever made it sees it."""
        self._glance.forget()
