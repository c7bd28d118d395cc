"""The Redis server of tests and benchmarks: it starts, can be killed, and ends with its starter."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import redis

from payonce.embedded.redis import RedisServer
from payonce.testing.eventually import eventually

STARTER = """
import sys
from pathlib import Path
from payonce.embedded.redis import RedisServer
server = RedisServer(Path(sys.argv[1]))
server.start()
print(server.port, flush=True)
sys.stdin.read()
"""


def test_a_killed_server_has_what_it_wrote_when_it_starts_again(tmp_path: Path) -> None:
    server = RedisServer(tmp_path, "always")
    server.start()
    try:
        with redis.Redis.from_url(server.url) as client:
            client.set("kept", "yes")
        server.kill()
        server.start()
        with redis.Redis.from_url(server.url) as client:
            assert client.get("kept") == b"yes"
    finally:
        server.close()


def test_the_fixture_is_empty(redis_server: RedisServer) -> None:
    with redis.Redis.from_url(redis_server.url) as client:
        assert client.dbsize() == 0
        client.set("left", "behind")


def test_and_empty_again_after_a_kill(redis_server: RedisServer) -> None:
    redis_server.kill()
    redis_server.ensure_empty()
    with redis.Redis.from_url(redis_server.url) as client:
        assert client.dbsize() == 0


async def test_it_ends_when_its_starter_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen(  # noqa: ASYNC220 - it waits for one line alone
        [sys.executable, "-c", STARTER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as starter:
        assert starter.stdout is not None
        port = int(starter.stdout.readline())
        os.kill(starter.pid, signal.SIGKILL)

        async def gone() -> bool:
            try:
                with redis.Redis(port=port) as client:
                    client.ping()
            except redis.ConnectionError:
                return True
            return False

        await eventually(gone)
