"""Connections that break, or fall silent, at the one moment that matters, with the statement chosen by a proxy."""

from contextlib import suppress

import asyncpg
import pytest

from payonce.engine.database.connections import Database
from payonce.engine.messages.model import Message
from payonce.engine.messages.transaction import begin
from payonce.testing import eventually
from tests.processes.payer import PAYMENTS
from tests.processes.proxy import CLAIM, COMMIT, FENCE, SWEEP, Fate, Proxy, Rule
from tests.processes.test_effect_stops import Bank, open_bank, others_finished, put_one_of_each, start_payer, states
from tests.processes.testbed import LONG_LEASE, ProcessTestbed

TRIES = 20
CUT_OFF_TRIES = 5


async def test_a_commit_whose_answer_is_lost_counts_as_done(testbed: ProcessTestbed, proxy: Proxy) -> None:
    """Guards the token of a commit: without it the run is taken for failed and its work is told twice."""
    await testbed.worker(LONG_LEASE, url=proxy.url)
    lost = proxy.expect(COMMIT, Fate.ANSWER_LOST)
    await testbed.put([1], LONG_LEASE)
    await testbed.noted("ended", 1)
    await testbed.drained()
    assert lost.met == 1
    await testbed.each_applied_once()
    assert await testbed.endings(1) == ["success"]
    assert len(testbed.journal.notes("began", 1)) == 1


async def test_a_commit_that_never_arrived_is_tried_again(testbed: ProcessTestbed, proxy: Proxy) -> None:
    """The other side of the same question: an aborted transaction must not pass for a committed one."""
    await testbed.worker(LONG_LEASE, url=proxy.url)
    lost = proxy.expect(COMMIT, Fate.REQUEST_LOST)
    await testbed.put([1], LONG_LEASE)
    await testbed.drained()
    assert lost.met == 1
    await testbed.each_applied_once()
    assert await testbed.endings(1) == ["retry", "success"]
    assert await testbed.taken_over() == 0, "the worker knew, and did not wait for its lease to end"


async def test_lost_answers_of_many_commits_in_mid_load_double_nothing(testbed: ProcessTestbed, proxy: Proxy) -> None:
    await testbed.worker(LONG_LEASE, url=proxy.url)
    lost = proxy.expect(COMMIT, Fate.ANSWER_LOST, times=40)
    await testbed.put(range(300), LONG_LEASE)
    await testbed.drained()
    assert lost.met == 40
    await testbed.each_applied_once()
    assert set(await testbed.endings()) == {"success"}


@pytest.mark.parametrize("fate", [Fate.ANSWER_LOST, Fate.REQUEST_LOST])
async def test_a_request_hears_whether_its_commit_was_carried_out(
    testbed: ProcessTestbed, proxy: Proxy, fate: Fate
) -> None:
    """Its token travels with the COMMIT, which is sent in another form than that of a run."""

    async def request(row: int) -> None:
        async with begin(database, testbed.feed) as tx:
            await tx.execute("insert into books.rows (id) values ($1)", row)

    async with Database.open(proxy.url) as database:
        await request(1)
        lost = proxy.expect(COMMIT, fate)
        if fate is Fate.ANSWER_LOST:
            await request(2)
        else:
            with pytest.raises(asyncpg.PostgresConnectionError):
                await request(2)
    assert lost.met == 1
    assert await testbed.ask("select count(*) from books.rows") == (2 if fate is Fate.ANSWER_LOST else 1)


@pytest.mark.parametrize("fate", [Fate.ANSWER_LOST, Fate.REQUEST_LOST])
async def test_a_lost_commit_of_an_intent_leads_to_one_payment(
    testbed: ProcessTestbed, proxy: Proxy, fate: Fate
) -> None:
    """Of a blind effect: if a committed intent were taken for failed, it would wait for a person."""
    async with open_bank(Bank()) as bank:
        await start_payer(testbed, bank, url=proxy.url)
        await put_one_of_each(testbed, ["keyed"])
        await testbed.drained()
        # Of the intent, then of the settlement or of the next try.
        lost = proxy.expect(COMMIT, fate, times=2)
        await testbed.feed.put([Message(queue=PAYMENTS.queue, payload={"row": 1, "kind": "blind"})])
        await testbed.drained()
        await others_finished(testbed, ["keyed", "blind"])
        assert lost.met == 2
        assert await states(testbed) == {"keyed": ["performed"], "blind": ["performed"]}
        assert bank.times() == {"keyed": 1, "blind": 1}


@pytest.mark.parametrize("words", [FENCE, "insert into books.lines"], ids=["the fence", "a business statement"])
@pytest.mark.parametrize("fate", [Fate.REQUEST_LOST, Fate.ANSWER_LOST])
async def test_a_connection_lost_inside_a_commit_leaves_nothing_of_it(
    testbed: ProcessTestbed, proxy: Proxy, words: str, fate: Fate
) -> None:
    await testbed.worker(url=proxy.url)
    lost = proxy.expect(words, fate)
    await testbed.put([1])
    await testbed.drained()
    assert lost.met == 1
    await testbed.each_applied_once()


async def test_an_acknowledgement_whose_answer_is_lost_runs_nothing_again(
    testbed: ProcessTestbed, proxy: Proxy
) -> None:
    """Runs without a commit of their own are acknowledged by the worker: a repeated acknowledgement finds them gone."""
    await testbed.worker(LONG_LEASE, url=proxy.url)
    lost = proxy.expect(CLAIM, Fate.ANSWER_LOST, times=3)
    await testbed.put(range(40), LONG_LEASE, deed="skip")
    await testbed.drained()
    assert lost.met == 3
    began = [note.row for note in testbed.journal.notes("began")]
    assert sorted(began) == list(range(40))


async def test_a_claim_whose_answer_is_lost_is_given_back_at_once(testbed: ProcessTestbed, proxy: Proxy) -> None:
    """Guards give_back: without it the message waits for the lease, and its worker is taken for dead."""
    await testbed.put([1], LONG_LEASE)
    claims = proxy.expect(CLAIM, Fate.ANSWER_LOST)
    await testbed.worker(LONG_LEASE, url=proxy.url)
    await testbed.drained()
    assert claims.met == 1
    await testbed.each_applied_once()


async def test_a_lost_claim_is_given_back_also_when_the_store_stays_away_for_a_while(
    testbed: ProcessTestbed, proxy: Proxy
) -> None:
    """The first try to give it back fails too; it must be made again when the store is back."""
    await testbed.put([1], LONG_LEASE)
    claims = proxy.expect(CLAIM, Fate.ANSWER_HELD)
    worker = await testbed.worker(LONG_LEASE, url=proxy.url)
    await eventually(lambda: claims.met == 1)
    await eventually(lambda: leased(testbed))
    proxy.refusing = True
    proxy.break_all()
    await eventually(lambda: worker.output.count("store_unavailable") >= 3)
    proxy.refusing = False
    await testbed.drained()
    await testbed.each_applied_once()


async def test_recovering_one_lost_answer_takes_nothing_from_another_under_way(
    testbed: ProcessTestbed, proxy: Proxy
) -> None:
    """Two round trips are under way at once. What the slower one brings is still this worker's when it arrives."""
    await testbed.worker(LONG_LEASE, url=proxy.url, slots=20)
    await testbed.put(range(400), LONG_LEASE, deed="skip", takes_s=0.02)
    await eventually(lambda: len(testbed.journal.notes("began")) >= 60)
    held = await one_held_and_one_lost(proxy)
    # Two sweeps take longer than a hasty recovery would.
    sweeps = proxy.expect(SWEEP, Fate.PASSED, times=3)
    await eventually(lambda: sweeps.met == 3)
    held.let_through.set()
    await testbed.drained()
    began_rows = [note.row for note in testbed.journal.notes("began")]
    assert sorted(began_rows) == list(range(400)), "a handler ran twice though its worker never died"


async def test_a_claim_that_is_heard_of_after_its_lease_is_not_begun(testbed: ProcessTestbed, proxy: Proxy) -> None:
    """Deadlines count from before the claim was sent: by then the message is somebody else's."""
    await testbed.put([1])
    claims = proxy.expect(CLAIM, Fate.ANSWER_HELD)
    late = await testbed.worker(url=proxy.url)
    await eventually(lambda: claims.met == 1)
    await testbed.worker()
    await testbed.drained()
    claims.let_through.set()
    await testbed.put([2], deed="hold")
    await testbed.noted("holding", 2)
    testbed.journal.let_go(2)
    await testbed.drained()
    await testbed.each_applied_once()
    assert not testbed.journal.notes("began", 1, late.pid)


async def test_a_worker_cut_off_from_the_store_ends_its_run_before_another_begins_it(
    testbed: ProcessTestbed, proxy: Proxy
) -> None:
    """Guards the local deadline: no answer comes, not even an error, and the lease is ending all the same.

    A tenth of the lease lies between the two, and a busy machine may wake the one that was cut off later than that:
    once in time is enough, since without the deadline it is never told at all."""
    for row in range(CUT_OFF_TRIES):
        if await ends_first_when_cut_off(testbed, proxy, row):
            return
    raise AssertionError(f"in {CUT_OFF_TRIES} tries the one that was cut off never ended first")


async def ends_first_when_cut_off(testbed: ProcessTestbed, proxy: Proxy, row: int) -> bool:
    cut_off = await testbed.worker(url=proxy.url)
    await testbed.put([row], deed="hold")
    await testbed.noted("holding", row)
    successor = await testbed.worker()
    proxy.freeze()
    await testbed.noted("began", row, pid=successor.pid)
    timeline = [(note.event, note.pid) for note in testbed.journal.notes(row=row)]
    testbed.journal.let_go(row)
    await testbed.drained()
    proxy.thaw()
    await testbed.each_applied_once()
    cut_off.kill()
    successor.kill()
    return ("CancelledError", cut_off.pid) in timeline[: timeline.index(("began", successor.pid))]


async def one_held_and_one_lost(proxy: Proxy) -> Rule:
    """Of two claims under way at once. Often there is only one: then it is let through and the next is held."""
    for _ in range(TRIES):
        held, lost = proxy.expect(CLAIM, Fate.ANSWER_HELD), proxy.expect(CLAIM, Fate.ANSWER_LOST)
        await eventually(held.is_used_up)
        with suppress(AssertionError):
            await eventually(lost.is_used_up, within_s=0.3)
            return held
        lost.times = 0
        held.let_through.set()
    raise AssertionError(f"in {TRIES} tries no two claims were under way at once")


async def leased(testbed: ProcessTestbed) -> bool:
    return bool(await testbed.ask("select exists (select from payonce.messages where state = 'leased')"))
