"""Ours, by the harness that catches the seed: a process that dies or sleeps behind any command does no damage."""

import pytest

from payonce.embedded.redis import RedisServer
from payonce.engine.messages.model import Ending, SettleAnswer, Settlement
from payonce.queues.redis import scripts
from payonce.testing import OpenStage
from tests.redis.fault_explorer import Path, QueueClient, Tally, explore
from tests.redis.ours import OurClient, ours_on, told
from tests.redis.paths import DONE, PUMP, RETRY, SEED_PATHS, SWEEP, sweep, tick


def our(client: QueueClient) -> OurClient:
    assert isinstance(client, OurClient)
    return client


async def tick_extended(client: QueueClient, tally: Tally) -> None:
    our(client).extends = True
    await tally.tick(client)


async def release(client: QueueClient, tally: Tally) -> None:
    claim = await our(client).claim()
    assert claim is not None
    await our(client).settle(Settlement(claim, Ending.RELEASED, "unknown action"))


async def give_back(client: QueueClient, tally: Tally) -> None:
    """The answer to the claim was lost: the store thinks we hold it, and we do not run it."""
    await our(client).claim()
    await our(client).queue.give_back([])


async def redrive(client: QueueClient, tally: Tally) -> None:
    await our(client).redrive()


async def put_two(client: QueueClient, tally: Tally) -> None:
    tally.put.update(("b", "c"))
    tally.in_doubt.update(("b", "c"))
    await our(client).put(["b", "c"])
    tally.in_doubt.clear()


async def settle_and_claim(client: QueueClient, tally: Tally) -> None:
    """One round trip ends one message and claims the next; the second is then run and ended."""
    mine = our(client)
    first = await mine.claim()
    assert first is not None
    await tally.handle({"payload": first.message.payload})
    exchange = await mine.queue.exchange([Settlement(first, Ending.SUCCESS)], 1)
    if exchange.answers[0] is SettleAnswer.SETTLED:
        tally.acknowledged[first.message.payload["name"]] += 1
    for claim in exchange.claims:
        await tally.handle({"payload": claim.message.payload})
        if await mine.settle(Settlement(claim, Ending.SUCCESS)) == "success":
            tally.acknowledged[claim.message.payload["name"]] += 1


async def send(client: QueueClient, tally: Tally) -> None:
    tally.put.update(("a", "b"))
    await our(client).send(["a", "b"])


async def send_and_carry(client: QueueClient, tally: Tally) -> None:
    await send(client, tally)
    await our(client).carry()


async def send_carry_and_lose(client: QueueClient, tally: Tally) -> None:
    await send_and_carry(client, tally)
    await our(client).wipe()


async def send_carry_and_tick(client: QueueClient, tally: Tally) -> None:
    await send_and_carry(client, tally)
    await tally.tick(client)


async def send_carry_tick_and_lose(client: QueueClient, tally: Tally) -> None:
    await send_carry_and_tick(client, tally)
    await our(client).wipe()


async def carry(client: QueueClient, tally: Tally) -> None:
    await our(client).carry()


async def refill_and_carry(client: QueueClient, tally: Tally) -> None:
    await client.pump()


KEPT_PATHS = (
    Path("relay", carry, put=(), before=send),
    Path("refill", refill_and_carry, put=(), before=send_carry_and_lose),
    Path("refill of parked messages", refill_and_carry, put=(), gives_up=("a",), before=send_carry_tick_and_lose),
    Path("success of a kept one", tick, put=(), before=send_and_carry),
    Path("retry of a kept one", tick, put=(), failures={"a": 1}, before=send_and_carry),
    Path("parking of a kept one", tick, put=(), gives_up=("a",), before=send_and_carry),
    Path("redrive of a kept one", redrive, put=(), gives_up=("a",), before=send_carry_and_tick),
)
OUR_PATHS = (
    *KEPT_PATHS,
    # What the seed pumps by two commands is part of every claim.
    *(path for path in SEED_PATHS if path is not PUMP),
    Path("settle and claim", settle_and_claim, put=("a", "b")),
    Path("extend", tick_extended),
    Path("release", release),
    Path("give back", give_back),
    Path("redrive", redrive, gives_up=("a",), before=tick),
    Path("put", put_two),
    Path("run alone", tick, abandoned_before=2, swept_before=True),
    Path("sweep of what died alone", sweep, abandoned_before=3),
    Path("claim of due messages", tick, failures={"a": 1}, before=tick, delays_pass_before=True),
)


LONG_PATHS = ("refill of parked messages", "refill")


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.name, marks=[pytest.mark.full] if path.name in LONG_PATHS else [])
        for path in OUR_PATHS
    ],
)
async def test_no_blow_behind_any_command_loses_or_doubles(
    redis_server: RedisServer, stage: OpenStage, path: Path
) -> None:
    async with stage() as opened:
        await opened.clock.freeze()
        found = await explore(ours_on(redis_server, opened), redis_server.port, path)
    assert not found, told(found)


@pytest.mark.parametrize(
    ("path", "script", "line", "instead", "shows"),
    [
        pytest.param(
            DONE,
            scripts.EXCHANGE,
            "return record and string.sub(record, 1, #token + 1) == token .. ' '",
            "return record",
            "while another process has it in hand",
            id="the token of a claim",
        ),
        pytest.param(
            RETRY,
            scripts.EXCHANGE,
            "redis.call('LREM', PROCESSING, -1, bodies[i])",
            "",
            "2 copies",
            id="one step for both places",
        ),
        pytest.param(
            RETRY,
            scripts.EXCHANGE,
            "redis.call('ZADD', DELAYED, ready_us / 1000, body)",
            "",
            "is lost",
            id="the place that a retry goes to",
        ),
        pytest.param(
            SWEEP, scripts.REAP, "push(record.body, meta.lane)", "", "is lost", id="the place that a sweep goes to"
        ),
    ],
)
async def test_a_line_that_is_taken_out_of_a_script_is_missed(
    redis_server: RedisServer,
    stage: OpenStage,
    monkeypatch: pytest.MonkeyPatch,
    path: Path,
    script: scripts.Script,
    line: str,
    instead: str,
    shows: str,
) -> None:
    assert line in script.body, "the ablation takes nothing out"
    monkeypatch.setattr(script, "body", script.body.replace(line, instead))
    async with stage() as opened:
        await opened.clock.freeze()
        found = await explore(ours_on(redis_server, opened), redis_server.port, path)
    assert shows in told(found)
