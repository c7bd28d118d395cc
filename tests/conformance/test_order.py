"""Promise 8: messages run in order of their due times, none starves, and lanes take turns."""

from collections import Counter
from typing import Any

import pytest

from payonce.engine.messages.policy import Policy
from tests.conformance.backend import PLAIN, QUEUE, Backend, claim, ids, message, retry, settle, success

LANES = Policy(QUEUE, lanes=True)


async def test_what_is_ready_first_is_claimed_first(backend: Backend) -> None:
    queue = await backend.queue(PLAIN)
    sent = []
    for delay_s in (30.0, 0.0, 20.0, 10.0):
        sent += await backend.feed.put([message(delay_s=delay_s)])
    await backend.time.advance(60)
    sent += await backend.feed.put([message()])
    expected = [sent[1], sent[3], sent[2], sent[0], sent[4]]
    assert ids(await claim(queue, 2)) == expected[:2]
    assert ids(await claim(queue)) == expected[2:]


async def test_a_retried_message_is_not_starved_by_newer_ones(backend: Backend) -> None:
    queue = await backend.queue(PLAIN)
    [old] = await backend.feed.put([message()])
    await settle(queue, retry((await claim(queue))[0], 1.5))
    for _ in range(10):
        await backend.time.advance(1)
        await backend.feed.put([message(), message()])
        if old in ids(await claim(queue, 1)):
            return
    raise AssertionError("newer messages went first ten times")


async def test_one_lane_of_thousands_does_not_hold_up_another_of_one(backend: Backend) -> None:
    queue = await backend.queue(LANES)
    await backend.feed.put([message(lane="large") for _ in range(10_000)])
    await backend.time.advance(60)
    [small] = await backend.feed.put([message(lane="small")])
    assert small in ids(await claim(queue, 10))


async def test_lanes_share_a_claim_equally(backend: Backend) -> None:
    queue = await backend.queue(LANES)
    await backend.feed.put([message(lane=f"tenant-{number % 4}") for number in range(400)])
    shares = Counter(claimed.message.lane for claimed in await claim(queue, 20))
    assert shares == {f"tenant-{number}": 5 for number in range(4)}


async def test_single_claims_go_round_the_lanes(backend: Backend) -> None:
    queue = await backend.queue(LANES)
    await backend.feed.put([message(lane=lane) for lane in "abc" for _ in range(3)])
    order = [(await claim(queue, 1))[0].message.lane for _ in range(9)]
    assert Counter(order[:3]) == Counter(order[3:6]) == Counter(order[6:]) == Counter("abc")


async def test_more_lanes_than_a_claim_can_serve_all_get_their_turn(backend: Backend) -> None:
    queue = await backend.queue(LANES)
    await backend.feed.put([message(lane=f"{number:02}") for number in range(30) for _ in range(5)])
    served: Counter[str | None] = Counter()
    for _ in range(3):
        claims = await claim(queue, 10)
        served.update(claimed.message.lane for claimed in claims)
        await settle(queue, *map(success, claims))
    assert served == {f"{number:02}": 1 for number in range(30)}


async def test_lanes_that_only_wait_do_not_starve_lanes_that_are_due(backend: Backend) -> None:
    queue = await backend.queue(LANES)
    await backend.feed.put([message(lane=f"a{number:02}", delay_s=3_600.0) for number in range(20)])
    [due] = await backend.feed.put([message(lane="b")])
    claimed = [each for _ in range(5) for each in ids(await claim(queue, 10))]
    assert claimed == [due]


async def test_lanes_that_partly_wait_do_not_starve_lanes_that_are_due(backend: Backend) -> None:
    queue = await backend.queue(LANES)
    busy = [message(lane=f"a{number}") for number in range(5) for _ in range(50)]
    waiting = [message(lane=f"b{number}", delay_s=3_600.0) for number in range(5)]
    await backend.feed.put([*busy, *waiting])
    last = await backend.feed.put([message(lane=f"c{number}") for number in range(5)])
    served = set()
    for _ in range(6):
        claims = await claim(queue, 10)
        served.update(ids(claims))
        await settle(queue, *map(success, claims))
    assert set(last) <= served


async def test_a_message_without_a_lane_has_a_turn_as_well(backend: Backend) -> None:
    queue = await backend.queue(LANES)
    await backend.feed.put([message(lane=lane) for lane in "abc" for _ in range(20)])
    [bare] = await backend.feed.put([message()])
    claimed = [each for _ in range(4) for each in ids(await claim(queue, 3))]
    assert bare in claimed


async def test_messages_from_before_lanes_were_declared_are_not_stranded(backend: Backend) -> None:
    await backend.queue(PLAIN)
    old = await backend.feed.put([message()])
    queue = await backend.queue(LANES)
    late = await backend.feed.put([message()])
    assert sorted(ids(await claim(queue))) == sorted([*old, *late])


async def test_within_a_lane_order_is_by_time_ready(backend: Backend) -> None:
    queue = await backend.queue(LANES)
    sent = []
    for _ in range(4):
        sent += await backend.feed.put([message(lane="a")])
        await backend.time.advance(1)
    assert [each for _ in range(4) for each in ids(await claim(queue, 1))] == sent


async def test_lanes_are_within_a_limit_and_stop_when_paused(backend: Backend) -> None:
    queue = await backend.queue(Policy(QUEUE, lanes=True, concurrency=2))
    await backend.feed.put([message(lane=lane) for lane in "abcd"])
    await backend.admin.pause(QUEUE, "maintenance")
    assert await claim(queue) == []
    await backend.admin.resume(QUEUE)
    assert len(await claim(queue)) == 2
    assert await claim(queue) == []


@pytest.mark.parametrize("limits", [{"concurrency": 4}, {"rate": 10.0, "burst": 3}], ids=["concurrency", "rate"])
async def test_lanes_take_turns_under_a_limit(backend: Backend, limits: dict[str, Any]) -> None:
    queue = await backend.queue(Policy(QUEUE, lanes=True, **limits))
    await backend.feed.put([message(lane=lane) for lane in "abcdefghij" for _ in range(10)])
    served: Counter[str | None] = Counter()
    for _ in range(30):
        claims = await claim(queue, 20)
        served.update(claimed.message.lane for claimed in claims)
        await settle(queue, *map(success, claims))
        await backend.time.advance(0.1)
    assert set(served) == set("abcdefghij")
    assert max(served.values()) - min(served.values()) <= 1


async def test_the_lane_of_those_without_one_takes_its_turn_and_no_more(backend: Backend) -> None:
    queue = await backend.queue(LANES)
    await backend.feed.put([message(lane=lane) for lane in (None, "a", "b") for _ in range(3)])
    order = [(await claim(queue, 1))[0].message.lane for _ in range(9)]
    assert Counter(order[:3]) == Counter(order[3:6]) == Counter(order[6:]) == Counter(["", "a", "b"])
