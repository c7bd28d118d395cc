"""/metrics costs one rendering a second, off the event loop, however often it is asked for."""

import asyncio
import threading

import pytest
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from payonce.http import metrics_page
from payonce.http.metrics_page import KEPT_S, MetricsPage
from tests.http.conftest import OpenWeb


@pytest.fixture
def renderings(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """The thread of every rendering."""
    threads: list[threading.Thread] = []

    def render(registry: CollectorRegistry) -> bytes:
        threads.append(threading.current_thread())
        return generate_latest(registry)

    monkeypatch.setattr(metrics_page, "generate_latest", render)
    return threads


async def test_many_who_ask_at_once_share_a_rendering_that_leaves_the_loop_alone(
    web: OpenWeb, renderings: list[threading.Thread]
) -> None:
    async with web() as ask:
        answers = await asyncio.gather(*(ask.get("/metrics") for _ in range(20)))
    assert {answer.status for answer in answers} == {200}
    assert all(b"payonce_claims_total" in answer.body for answer in answers)
    assert len(renderings) == 1
    assert renderings[0] is not threading.main_thread()


async def test_the_figures_are_a_second_old_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = CollectorRegistry()
    depth = Gauge("depth", "Of a queue.", registry=registry)
    monkeypatch.setattr(metrics_page, "REGISTRY", registry)
    now = 100.0
    page = MetricsPage(lambda: now)
    assert b"depth 0.0" in (await page.answer()).body
    depth.set(7)
    now += KEPT_S - 0.01
    assert b"depth 0.0" in (await page.answer()).body
    now += 0.01
    assert b"depth 7.0" in (await page.answer()).body
