"""Promise 6: pause, resume, redrive and purge do exactly what was previewed, lose nothing, and make nobody spin."""

from datetime import timedelta

import pytest

from payonce.engine.messages.model import SettleAnswer, State
from payonce.engine.messages.policy import Policy
from payonce.engine.messages.ports import Filter
from payonce.kit.ids import new_id
from payonce.kit.outcomes import Invalid
from tests.conformance.backend import (
    PLAIN,
    QUEUE,
    Backend,
    claim,
    claim_one,
    crash_until_alone,
    ids,
    message,
    park_all,
    retry,
    settle,
    stored,
    success,
)

ALL = Filter()


async def test_a_paused_queue_gives_out_nothing_and_loses_nothing(backend: Backend) -> None:
    queue = await backend.queue(PLAIN)
    sent = await backend.feed.put([message(), message()])
    await backend.admin.pause(QUEUE, "the vendor is down")
    assert await claim(queue) == []
    sent += await backend.feed.put([message()])
    assert (await backend.admin.depth(QUEUE)).paused
    assert await claim(queue) == []
    await backend.admin.resume(QUEUE)
    assert not (await backend.admin.depth(QUEUE)).paused
    assert sorted(ids(await claim(queue))) == sorted(sent)


async def test_what_runs_when_the_queue_is_paused_may_still_end(backend: Backend) -> None:
    queue = await backend.queue(PLAIN)
    await backend.feed.put([message(), message()])
    done, again = await claim(queue)
    await backend.admin.pause(QUEUE, "maintenance")
    assert await queue.extend([done, again]) == []
    exchange = await queue.exchange([success(done), retry(again)], 10)
    assert exchange.answers == [SettleAnswer.SETTLED, SettleAnswer.SETTLED]
    assert not exchange.claims


async def test_a_paused_queue_tells_its_workers_to_rest(backend: Backend) -> None:
    queue = await backend.queue(PLAIN)
    await backend.feed.put([message()])
    assert (await queue.exchange([], 0)).rest_s is None
    await backend.admin.pause(QUEUE, "maintenance")
    paused = await queue.exchange([], 10)
    assert paused.rest_s is not None
    assert paused.rest_s >= 0.05


async def test_a_pause_survives_the_start_of_another_worker(backend: Backend) -> None:
    await backend.queue(PLAIN)
    await backend.feed.put([message()])
    await backend.admin.pause(QUEUE, "maintenance")
    assert await claim(await backend.queue(PLAIN, "worker-2")) == []


async def test_other_queues_run_on_beside_a_paused_one(backend: Backend) -> None:
    await backend.queue(PLAIN)
    other = await backend.queue(Policy("refunds"))
    await backend.feed.put([message(), message(queue="refunds")])
    await backend.admin.pause(QUEUE, "maintenance")
    assert len(await claim(other)) == 1


async def test_a_redriven_message_starts_over(backend: Backend) -> None:
    queue = await backend.queue(PLAIN)
    await backend.feed.put([message()])
    await settle(queue, retry(await claim_one(queue)))
    [parked] = await park_all(queue)
    await backend.time.advance(7_200)
    assert await backend.admin.redrive(QUEUE, ALL) == 1
    again = await claim_one(queue)
    assert (again.message.id, again.message.attempts, again.crashes) == (parked, 0, 0)
    assert again.first_attempt_at == await backend.time.now(), "its age begins anew as well"
    assert await stored(backend, State.PARKED) == []


async def test_a_redrive_takes_one_a_filter_or_all(backend: Backend) -> None:
    queue = await backend.queue(PLAIN)
    first, *_ = await backend.feed.put([message(), message(), message()])
    await park_all(queue, "timeout")
    await backend.feed.put(
        [message(action="pay", correlation_id="c-1"), message(action="pay"), message(action="refund")]
    )
    await park_all(queue, "refused: limit 5 of 10")
    await backend.time.advance(60)
    later = await backend.time.now()
    await backend.feed.put([message()])
    await park_all(queue, "timeout")

    async def redriven(which: Filter) -> int:
        """As many as the preview showed, and then none of them is left."""
        preview = await backend.admin.preview(QUEUE, State.PARKED, which)
        assert await backend.admin.redrive(QUEUE, which) == preview.count
        assert (await backend.admin.preview(QUEUE, State.PARKED, which)).count == 0
        await settle(queue, *map(success, await claim(queue, 100)))
        return preview.count

    assert await redriven(Filter(ids=[first, new_id()])) == 1
    assert await redriven(Filter(action="pay", correlation_id="c-1")) == 1
    assert await redriven(Filter(action="refund", error_contains="limit 5")) == 1
    assert await redriven(Filter(error_contains="%")) == 0, "a filter is text, not a pattern"
    assert await redriven(Filter(parked_after=later)) == 1
    assert await redriven(Filter(parked_before=later, error_contains="timeout")) == 2
    assert await redriven(ALL) == 1
    assert (await backend.admin.depth(QUEUE)).parked == 0


async def test_a_redrive_of_thousands_leaves_none(backend: Backend) -> None:
    queue = await backend.queue(PLAIN)
    await backend.feed.put([message() for _ in range(2_100)])
    while await park_all(queue):
        pass
    assert await backend.admin.redrive(QUEUE, ALL) == 2_100
    depth = await backend.admin.depth(QUEUE)
    assert (depth.ready, depth.parked) == (2_100, 0)


async def test_a_redrive_touches_only_parked_messages(backend: Backend) -> None:
    queue = await backend.queue(PLAIN)
    await backend.feed.put([message()])
    leased = await claim_one(queue)
    delayed = await backend.feed.put([message(delay_s=60.0)])
    assert await backend.admin.redrive(QUEUE, ALL) == 0
    assert [found.message.id for found in await stored(backend, State.READY)] == delayed
    assert await settle(queue, success(leased)) == [SettleAnswer.SETTLED]


async def test_a_preview_changes_nothing_and_shows_samples(backend: Backend) -> None:
    queue = await backend.queue(PLAIN)
    await backend.feed.put([message() for _ in range(12)])
    await park_all(queue, "timeout")
    preview = await backend.admin.preview(QUEUE, State.PARKED, ALL)
    assert preview.count == 12
    assert 1 <= len(preview.samples) < 12
    assert all(sample.last_error == "timeout" for sample in preview.samples)
    assert (await backend.admin.depth(QUEUE)).parked == 12


async def test_what_is_purged_leaves_a_line_in_the_log(backend: Backend) -> None:
    queue = await backend.queue(PLAIN)
    sent = await backend.feed.put([message(), message()])
    await park_all(queue)
    assert await backend.admin.purge(QUEUE, State.PARKED, Filter(ids=sent[:1]), by="ada") == 1
    assert [found.message.id for found in await stored(backend, State.PARKED)] == sent[1:]
    last = (await backend.log_of(sent[0]))[-1]
    assert (last.status, last.last_error) == ("failed", "purged by ada")


async def test_ready_delayed_and_suspected_messages_can_be_purged(backend: Backend) -> None:
    queue = await backend.queue(PLAIN)
    await backend.feed.put([message()])
    await crash_until_alone(backend, queue)
    await backend.feed.put([message(), message(delay_s=60.0)])
    assert await backend.admin.purge(QUEUE, State.ALONE, ALL, by="ada") == 1
    assert await backend.admin.purge(QUEUE, State.READY, ALL, by="ada") == 2
    assert await claim(queue) == []
    assert await queue.claim_alone() is None


async def test_a_purge_never_touches_what_is_worked_on(backend: Backend) -> None:
    queue = await backend.queue(PLAIN)
    await backend.feed.put([message()])
    claimed = await claim_one(queue)
    for state in (State.READY, State.PARKED, State.ALONE):
        assert await backend.admin.purge(QUEUE, state, ALL, by="ada") == 0
    with pytest.raises(Invalid, match="leased messages cannot be purged"):
        await backend.admin.purge(QUEUE, State.LEASED, ALL, by="ada")
    assert await settle(queue, success(claimed)) == [SettleAnswer.SETTLED]


async def test_peeking_pages_through_a_queue_in_the_order_of_its_times(backend: Backend) -> None:
    await backend.queue(PLAIN)
    sent = []
    for _ in range(7):
        sent += await backend.feed.put([message()])
        await backend.time.advance(1)
    pages, after = [], None
    while page := await backend.admin.peek(QUEUE, State.READY, 3, after):
        pages.append([found.message.id for found in page])
        after = pages[-1][-1]
    assert pages == [sent[:3], sent[3:6], sent[6:]]


async def test_depth_counts_each_message_in_one_place(backend: Backend) -> None:
    queue = await backend.queue(PLAIN)
    await backend.feed.put([message()])
    await crash_until_alone(backend, queue)
    await backend.feed.put([message()])
    await park_all(queue)
    await backend.feed.put([message(), message()])
    await claim(queue, 1)
    await backend.time.advance(5)
    await backend.feed.put([message(delay_s=60.0)])
    depth = await backend.admin.depth(QUEUE)
    assert (depth.ready, depth.delayed, depth.alone, depth.leased, depth.parked) == (1, 1, 1, 1, 1)
    assert depth.oldest_ready_s == pytest.approx(5)


async def test_an_unknown_queue_is_refused_with_the_known_ones(backend: Backend) -> None:
    await backend.queue(PLAIN)
    with pytest.raises(Invalid, match=f"no queue 'paymets'.*{QUEUE}"):
        await backend.admin.pause("paymets", "typo")
    with pytest.raises(Invalid, match="no queue 'paymets'"):
        await backend.feed.put([message(queue="paymets")])


async def test_parked_times_are_when_they_were_parked(backend: Backend) -> None:
    queue = await backend.queue(PLAIN)
    await backend.feed.put([message()])
    await backend.time.advance(3_600)
    parked_at = await backend.time.now()
    await park_all(queue)
    window = Filter(parked_after=parked_at, parked_before=parked_at + timedelta(seconds=1))
    assert (await backend.admin.preview(QUEUE, State.PARKED, window)).count == 1


async def test_a_purge_takes_only_what_was_there_when_it_began(backend: Backend) -> None:
    await backend.queue(PLAIN)
    await backend.feed.put([message() for _ in range(3)])
    later = await backend.time.advance(60)
    await backend.feed.put([message(created_at=later + timedelta(seconds=1))])
    assert await backend.admin.purge(QUEUE, State.READY, Filter(), by="test") == 3
    assert (await backend.admin.depth(QUEUE)).ready == 1
