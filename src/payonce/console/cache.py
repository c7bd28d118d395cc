"""What many pages show and many people look at: loaded for all of them, at most so often."""

from collections.abc import Mapping, Sequence

from payonce.console.context import Context
from payonce.console.shared_loads import CachedValue
from payonce.console.summary import Summary, load_summary
from payonce.console.waiting_causes import leading_causes
from payonce.engine.effects.meter import AssetFlow, asset_flows
from payonce.engine.monitoring.attention import Attention

METER_TIMES = 15
"""The meter adds up a day of effects, so it is kept so many times longer than the rest."""
CAUSES_TIMES = 5
"""Causes read some hundred messages."""


class Cache:
    def __init__(self, context: Context, keep_s: float) -> None:
        self._context = context
        self._summary: CachedValue[Summary] = CachedValue(lambda: load_summary(context), keep_s)
        self._attention: CachedValue[Sequence[Attention]] = CachedValue(self._load_attention, keep_s)
        self._causes: CachedValue[Mapping[str, str]] = CachedValue(self._load_causes, keep_s * CAUSES_TIMES)
        self._meter: CachedValue[list[AssetFlow]] = CachedValue(lambda: asset_flows(context.read), keep_s * METER_TIMES)

    async def summary(self) -> Summary:
        return await self._summary.get()

    async def attention(self) -> Sequence[Attention]:
        """What the services' own objects need of a person."""
        return await self._attention.get()

    async def causes(self) -> Mapping[str, str]:
        """Why most of what is parked, in review or unknown is so."""
        return await self._causes.get()

    async def meter(self) -> Sequence[AssetFlow]:
        return await self._meter.get()

    def forget(self) -> None:
        """After a change, whoever made it sees it."""
        for each in (self._summary, self._attention, self._causes):
            each.forget()

    async def _load_attention(self) -> Sequence[Attention]:
        return [found for attentive in self._context.attention for found in await attentive(self._context.read)]

    async def _load_causes(self) -> Mapping[str, str]:
        return await leading_causes(self._context, (await self._summary.get()).depths)
