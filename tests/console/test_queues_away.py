"""The server of the queues is away: the console says so, and all that lies in PostgreSQL is still there."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from payonce.embedded.redis import RedisServer
from payonce.queues.redis import RedisAdmin, RedisFeed, RedisStore
from payonce.testing import OpenStage
from tests.console.renewals import POLICY
from tests.console.visitor import console, visiting


async def test_the_overview_says_that_redis_is_away_and_other_pages_go_on(stage: OpenStage, tmp_path: Path) -> None:
    server = RedisServer(tmp_path / "redis", "everysec")
    server.start()
    try:
        async with stage() as s, RedisStore.open(server.url, s.database) as store:
            in_redis: Any = {"feed": RedisFeed(store, s.notifier), "admin": RedisAdmin(store, s.notifier)}
            there = replace(s, **in_redis)
            await there.feed.declare([POLICY])
            async with console(there) as address, visiting(address) as visitor:
                assert "All quiet" in (await visitor.get("/")).words
                server.kill()
                for path in ("/", "/queues", "/parked"):
                    page = await visitor.get(path)
                    assert (page.status, "parked messages are unavailable" in page.words) == (200, True), path
                    assert "does not answer" in page.words
                for said in ("All quiet", "No message is parked", "No queue is declared"):
                    assert said not in page.words
                for path in ("/payouts", "/effects", "/freezes", "/jobs", "/trace?id=q:sub"):
                    assert (await visitor.get(path)).status == 200, path
                page = await visitor.get(f"/queues/{POLICY.queue}")
                assert (page.status, '<nav id="pages"' in page.text) == (503, True)
                server.start()
                assert "All quiet" in (await visitor.get("/")).words
    finally:
        server.close()
