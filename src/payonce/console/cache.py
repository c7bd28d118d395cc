"""Data that many pages show, loaded once for all viewers and cached for seconds."""

from collections.abc import Mapping, Sequence

from payonce.console.context import Context
from payonce.console.shared_loads import CachedValue
from payonce.console.summary import Summary, load_summary
from payonce.console.waiting_causes import leading_causes
from payonce.engine.effects.meter import AssetFlow, asset_flows
from payonce.engine.monitoring.attention import Attention

METER_TIMES = 15
"""The meter totals a day of effects, so it is cached this many times longer."""
CAUSES_TIMES = 5
"""Causes read some hundred messages, so they are cached this many times longer."""


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
        """What in the services needs an operator."""
        return await self._attention.get()

    async def causes(self) -> Mapping[str, str]:
        """The most frequent cause of parked messages, effects in review and unknown effects."""
        return await self._causes.get()

    async def meter(self) -> Sequence[AssetFlow]:
        return await self._meter.get()

    def forget(self) -> None:
        """Drops cached data after a change, so that it is visible at once."""
        for each in (self._summary, self._attention, self._causes):
            each.forget()

    async def _load_attention(self) -> Sequence[Attention]:
        return [found for attentive in self._context.attention for found in await attentive(self._context.read)]

    async def _load_causes(self) -> Mapping[str, str]:
        return await leading_causes(self._context, (await self._summary.get()).depths)
