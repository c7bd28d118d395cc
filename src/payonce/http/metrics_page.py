"""/metrics, rendered at most once a second however often it is asked for.

A rendering takes tens of milliseconds, in which the event loop would renew no lease. The samples are collected on the
loop, one metric at a time, so that no gauge is seen while it is filled anew; the text is written in a thread.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Metric, generate_latest
from starlette.responses import Response

from payonce.engine.monitoring.metrics import REGISTRY

KEPT_S: Final = 1.0
"""Scrapers come every ten seconds or so; whoever comes more often gets the same figures again."""


class MetricsPage:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._rendering = asyncio.Lock()
        self._body = b""
        self._kept_until = float("-inf")

    async def answer(self) -> Response:
        if self._clock() >= self._kept_until:
            async with self._rendering:
                if self._clock() >= self._kept_until:
                    self._body = await _rendered()
                    self._kept_until = self._clock() + KEPT_S
        return Response(self._body, media_type=CONTENT_TYPE_LATEST)


class _Snapshot(CollectorRegistry):
    """Metrics as they were, for the function that renders a registry."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        super().__init__()
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


async def _rendered() -> bytes:
    metrics = []
    for metric in REGISTRY.collect():
        metrics.append(metric)
        # Others have their turn between two metrics.
        await asyncio.sleep(0)
    return await asyncio.to_thread(generate_latest, _Snapshot(metrics))
