"""/metrics, rendered at most once a second.

Rendering takes tens of milliseconds, during which the event loop could renew no lease. Samples are collected on the
loop, one metric at a time, so that no gauge is read while it is being updated. The text is written in a thread.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Metric, generate_latest
from starlette.responses import Response

from payonce.engine.monitoring.metrics import REGISTRY

KEPT_S: Final = 1.0
"""Scrapers usually poll every ten seconds; more frequent requests get the same figures."""


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
    """Collected metrics, in the form that generate_latest renders."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        super().__init__()
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


async def _rendered() -> bytes:
    metrics = []
    for metric in REGISTRY.collect():
        metrics.append(metric)
        # Other tasks run between two metrics.
        await asyncio.sleep(0)
    return await asyncio.to_thread(generate_latest, _Snapshot(metrics))
