"""The command line on queues that lie in Redis: steered alike, moved over, refilled, and refused when it must be."""

import pytest
import redis

from payonce.embedded.redis import RedisServer
from payonce.testing import ScratchDatabase
from tests.cli.conftest import QUEUE, Payonce, ask, depth_of, until


@pytest.fixture
def on_redis(payonce: Payonce, redis_server: RedisServer) -> Payonce:
    payonce.environment["REDIS_URL"] = redis_server.url
    return payonce


def test_a_queue_in_redis_is_steered_by_the_same_commands(on_redis: Payonce, database: ScratchDatabase) -> None:
    first = on_redis("queues", "put", QUEUE, '{"row_id": 1}', "--key", "one", "--json").json
    again = on_redis("queues", "put", QUEUE, '{"row_id": 2}', "--key", "one", "--json").json
    assert (first["accepted"], again["accepted"], again["id"]) == (True, False, first["id"])
    on_redis("queues", "pause", QUEUE, "--reason", "maintenance")
    depth = depth_of(on_redis)
    assert (depth["ready"], depth["paused"]) == (1, True)
    assert ask(database.owner_url, "select count(*) from payonce.messages") == 0


def test_queues_are_moved_over_and_a_start_that_would_leave_them_behind_is_refused(
    on_redis: Payonce, redis_server: RedisServer
) -> None:
    elsewhere = {"PAYONCE_QUEUES": "postgres"}
    assert on_redis("queues", "put", QUEUE, '{"row_id": 1}', "--json", **elsewhere).json["accepted"]
    refused = on_redis("run", "tally.worker")
    assert refused.code != 0
    assert "payonce queues move --to redis" in refused.sentence
    assert on_redis("queues", "move", "--to", "redis", "--json").json == {"moved": 1, "to": "redis"}
    assert depth_of(on_redis)["ready"] == 1
    assert on_redis("queues", "refill", "--json").json == {"put_back": 0, "parked": 0}
    redis_server.ensure_empty()
    assert on_redis("queues", "refill", "--json").json == {"put_back": 1, "parked": 0}
    assert depth_of(on_redis)["ready"] == 1
    assert on_redis("queues", "move", "--to", "postgres", "--json").json["moved"] == 1


def test_a_command_that_looks_into_the_wrong_store_changes_nothing_and_says_so(on_redis: Payonce) -> None:
    on_redis("queues", "put", QUEUE, '{"row_id": 1}')
    wrong = {"PAYONCE_QUEUES": "postgres"}
    sentence = f"queue {QUEUE} is in Redis, but this process keeps its queues in PostgreSQL; set REDIS_URL"
    for command in (
        ["put", QUEUE, '{"row_id": 2}'],
        ["redrive", QUEUE, "--yes"],
        ["purge", QUEUE, "--yes"],
        ["pause", QUEUE],
        ["resume", QUEUE],
    ):
        assert sentence in on_redis("queues", *command, **wrong).sentence
    for command in (["show", QUEUE], ["peek", QUEUE]):
        shown = on_redis("queues", *command, "--json", **wrong)
        assert (shown.code, shown.json["queue"]) == (0, QUEUE)
        assert sentence in shown.stderr
    assert "is in Redis" in on_redis("queues", "list", **wrong).stderr
    depth = depth_of(on_redis)
    assert (depth["ready"], depth["paused"]) == (1, False)
    assert on_redis("queues", "list").stderr == ""


def test_queues_stay_where_they_are_while_a_process_works_on_them(on_redis: Payonce, database: ScratchDatabase) -> None:
    held = "select holder from payonce.leases where name = 'janitors' and expires_at > payonce.lease_now()"
    running = on_redis.start("run", "tally.worker")
    leader = until(lambda: ask(database.owner_url, held), "the worker leads")
    refused = on_redis("queues", "move", "--to", "postgres").sentence
    assert refused == f"process {leader} is running; stop every worker, then try again"
    other = on_redis("run", "tally.worker", PAYONCE_QUEUES="postgres")
    assert (
        f"queue {QUEUE} is in Redis, but this process keeps its queues in PostgreSQL; process {leader}"
        in (other.stderr.splitlines()[-1])
    )
    ask(database.owner_url, "update payonce.queues set backend = 'postgres'")
    _, stderr = running.communicate(timeout=60)
    assert running.returncode != 0
    assert f"queue {QUEUE} is in PostgreSQL, but this process keeps its queues in Redis: it was moved" in stderr
    until(lambda: ask(database.owner_url, held) is None, "its lease ends")
    assert on_redis("queues", "move", "--to", "redis", "--json").json["to"] == "redis"


def test_the_first_process_takes_queues_along_that_are_empty(on_redis: Payonce, database: ScratchDatabase) -> None:
    on_redis("queues", "list", PAYONCE_QUEUES="postgres")
    on_redis.start("run", "tally.worker")
    there = "select count(*) = 0 from payonce.queues where backend = 'postgres'"
    until(lambda: ask(database.owner_url, there), "every queue is in Redis")


def test_a_direct_message_is_followed_before_its_first_run(on_redis: Payonce) -> None:
    sent = on_redis("queues", "put", QUEUE, '{"row_id": 1}', "--correlation-id", "order-1", "--json").json["id"]
    [entry] = on_redis("trace", sent, "--json").json["entries"]
    assert (entry["message_id"], entry["queue"], entry["status"]) == (sent, QUEUE, "ready")
    assert "put directly into Redis are found only by message id" in on_redis("trace", "order-1").stderr


def test_what_cannot_be_read_does_not_hold_up_a_redrive(on_redis: Payonce, redis_server: RedisServer) -> None:
    on_redis("queues", "list")
    good = '{"id":"0199a3c4-7d1e-7c3b-9a1f-2f6f1f0e8a11","action":"","payload":{"row_id":1,"unreadable":"ink"}}'
    with redis.Redis.from_url(redis_server.url) as client:
        client.lpush(f"q:{QUEUE}:failed", "no message", good)
        client.hset(f"q:{QUEUE}:ids", good[7:43], "deP 1000000 0 - 0 the bank is closed")
    done = on_redis("queues", "redrive", QUEUE, "--yes", "--json")
    assert (done.json["redriven"], done.json["matching"]) == (1, 2)
    assert "1 of them cannot be decoded and stay parked; they can only be purged" in done.stderr
    on_redis("queues", "refill")
    depth = depth_of(on_redis)
    assert (depth["ready"], depth["parked"]) == (1, 1)
    assert on_redis("queues", "redrive", QUEUE, "--yes", "--json").json["redriven"] == 0
    assert on_redis("queues", "purge", QUEUE, "--yes", "--json").json["purged"] == 1


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        (
            {"REDIS_URL": "http://localhost"},
            "REDIS_URL set, its value is not shown; it must be an address such as redis",
        ),
        ({"REDIS_URL": "redis://127.0.0.1:1/0"}, "Redis at 127.0.0.1:1 does not answer"),
        ({"PAYONCE_QUEUES": "kafka"}, "PAYONCE_QUEUES is 'kafka'; it must be postgres or redis"),
        ({"PAYONCE_QUEUES": "redis"}, "REDIS_URL is not set"),
    ],
)
def test_a_redis_that_cannot_be_used_is_refused_in_one_sentence(
    payonce: Payonce, variables: dict[str, str], sentence: str
) -> None:
    assert sentence in payonce("queues", "list", **variables).sentence
