"""Actions above a threshold are requested by one person and carried out when a second one approves: once and as
requested, or not at all."""

import asyncio
from contextlib import suppress
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from payonce.engine.controls import (
    Actions,
    Approval,
    ApprovalState,
    Executed,
    Redrive,
    ReviewAnswer,
    WriteOff,
    answer_review_action,
    approvals,
    deny,
    grant,
    redrive_action,
    redrive_request,
    remove_threshold,
    set_threshold,
    submit,
    thresholds,
    withdraw,
    write_off_action,
)
from payonce.engine.effects import Answer, Findable, Keyed, Review, Safety
from payonce.engine.messages.ports import Filter
from payonce.engine.messages.transaction import begin
from payonce.engine.reconcile import unmatched, write_off
from payonce.kit.outcomes import Invalid, Retry, Stale
from payonce.testing import OpenStage
from tests.engine.bank import LOSSES, SUSPENSE, Branch, open_branch
from tests.engine.controls_stage import EUR, PAY, Till, euros, open_till
from tests.engine.effects_stage import HORIZON_S


async def forgets(request: object) -> None:
    """A vendor's fence."""


def actions(till: Till) -> Actions:
    return {action.name: action for action in (answer_review_action(till.s.admin), redrive_action(till.s.admin))}


async def threshold(till: Till, above: str) -> None:
    async with till.begin() as tx:
        await set_threshold(tx, euros(above), "root")


async def asked(till: Till, review: Review, answer: Answer = Answer.DID_NOT, by: str = "ada", **more: Any) -> Any:
    given = ReviewAnswer(review.effect.id, review.effect.revision, answer, "looked", **more)
    async with till.begin() as tx:
        return await submit(tx, actions(till)["answer review"], given, by, "the statement does not show it")


async def waiting(till: Till, review: Review, **more: Any) -> Approval:
    found = await asked(till, review, **more)
    assert isinstance(found, Approval)
    assert found.state is ApprovalState.WAITING
    return found


async def granted(till: Till, approval: Approval, by: str = "bob") -> Approval:
    async with till.begin() as tx:
        return await grant(tx, actions(till), approval.id, by)


async def message_states(till: Till) -> list[str]:
    rows = await till.s.owner.fetch("select state from payonce.messages order by id")
    return [row["state"] for row in rows]


async def test_below_the_threshold_it_is_done_at_once_and_the_message_goes_on(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        await threshold(till, "1.00")
        review = await till.in_review(minor=100)
        done = await asked(till, review)
        assert isinstance(done, Executed)
        assert done.result == {
            "effect": str(review.effect.id),
            "state": "abandoned",
            "message": str(review.effect.message_id),
            "redriven": True,
            "gone": False,
        }
        assert await till.states() == {"p-1": "abandoned"}
        assert await message_states(till) == ["ready"]
        assert await approvals(till.read, None) == []
        assert (await till.notes())[-1] == (
            "ada",
            "answer did_not for bank.pay p-1:1 (1.00 EUR): the statement does not show it",
        )


async def test_above_it_nothing_happens_until_a_second_person_agrees(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        await threshold(till, "1.00")
        approval = await waiting(till, await till.in_review(minor=101))
        assert (approval.asked_by, approval.amounts) == ("ada", (euros("1.01"),))
        assert await till.states() == {"p-1": "review"}
        assert await message_states(till) == ["parked"]
        after = await granted(till, approval)
        assert (after.state, after.decided_by, after.result["redriven"]) == (ApprovalState.GRANTED, "bob", True)
        assert await till.states() == {"p-1": "abandoned"}
        assert await message_states(till) == ["ready"]
        detail = await till.s.owner.fetchval("select detail from payonce.effect_attempts order by id desc limit 1")
        assert detail == "did_not by ada, granted by bob: looked"
        assert [actor for actor, _ in await till.notes()] == ["root", "ada", "bob"]


@pytest.mark.parametrize("by", ["ada", "ADA", " ada "])
async def test_nobody_agrees_with_themselves(stage: OpenStage, by: str) -> None:
    async with open_till(stage) as till:
        await threshold(till, "0.00")
        approval = await waiting(till, await till.in_review())
        with pytest.raises(Invalid, match="was requested by ada; a second person must decide"):
            await granted(till, approval, by)
        with pytest.raises(Invalid, match="a second person must decide"):
            async with till.begin() as tx:
                await deny(tx, approval.id, by, "never mind")
        assert await till.states() == {"p-1": "review"}


async def test_the_table_itself_wants_a_second_person(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        await threshold(till, "0.00")
        await waiting(till, await till.in_review())
        with pytest.raises(asyncpg.CheckViolationError, match="a_second_person_decides"):
            await till.s.database.work.execute(
                "update payonce.approvals set state = 'granted', decided_by = 'Ada', decided_at = payonce.due_now()"
            )


async def test_an_approval_is_carried_out_once(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        await threshold(till, "0.00")
        approval = await waiting(till, await till.in_review())
        both = await asyncio.gather(granted(till, approval), granted(till, approval, "cyd"))
        assert both[0] == both[1]
        answers = "select count(*) from payonce.effect_attempts where event = 'answered'"
        assert await till.s.owner.fetchval(answers) == 1
        with pytest.raises(Invalid, match="was already granted by"):
            async with till.begin() as tx:
                await deny(tx, approval.id, "cyd", "too late")


async def test_what_was_decided_is_not_rewritten(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        await threshold(till, "0.00")
        approval = await waiting(till, await till.in_review())
        for statement in ("update payonce.approvals set argument = '{}'", "delete from payonce.approvals"):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await till.s.database.work.execute(statement)
        await granted(till, approval)
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="not rewritten"):
            await till.s.database.work.execute("update payonce.approvals set decided_by = 'cyd'")


async def test_nothing_is_written_down_as_granted_already(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        columns = "action, subject, argument, text, amounts, why, asked_by, expires_at"
        values = "'redrive', 'pay', '{}', '', '[]', '', 'ann', payonce.due_now() + interval '1 hour'"
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await till.s.database.work.execute(
                f"insert into payonce.approvals ({columns}, state, decided_by) values ({values}, 'granted', 'bob')"
            )
        await till.s.database.work.execute(f"insert into payonce.approvals ({columns}) values ({values})")
        assert await till.s.owner.fetchval("select state from payonce.approvals") == "waiting"


async def test_news_since_the_asking_deny_it_with_a_sentence_and_nothing_is_done(stage: OpenStage) -> None:
    async with open_till(stage, Keyed(3_600.0)) as till:
        await threshold(till, "0.00")
        review = await till.in_review()
        approval = await waiting(till, review)
        await till.s.clock.advance(3_601)
        await asked(till, review, Answer.LOOK_AGAIN, by="cyd")
        after = await granted(till, approval)
        assert after.state is ApprovalState.DENIED
        assert after.result == "not done: bank.pay p-1:1 is unknown and has changed since it was shown; look again"
        assert await till.states() == {"p-1": "unknown"}


@pytest.mark.parametrize(
    "safety",
    [Keyed(3_600.0), Findable(HORIZON_S), Findable(HORIZON_S, forgets)],
    ids=["keyed", "findable", "fenced"],
)
async def test_to_look_again_needs_a_second_person_where_a_send_may_follow(stage: OpenStage, safety: Safety) -> None:
    async with open_till(stage, safety) as till:
        await threshold(till, "0.00")
        approval = await waiting(till, await till.in_review(), answer=Answer.LOOK_AGAIN)
        assert (approval.amounts, await message_states(till)) == ((euros("1.00"),), ["parked"])
        await granted(till, approval)
        assert await till.states() == {"p-1": "unknown"}


async def test_to_look_again_needs_nobody_else_where_only_a_question_can_follow(stage: OpenStage) -> None:
    async with open_till(stage, Keyed(3_600.0)) as till:
        await threshold(till, "0.00")
        review = await till.in_review()
        await till.s.clock.advance(3_600)
        assert isinstance(await asked(till, review, Answer.LOOK_AGAIN), Executed)
        [again] = (await till.queue.exchange([], 1)).claims
        calls = len(till.vendor.calls)
        with suppress(Retry):
            await till.pay(till.run(again), "p-1")
        assert len(till.vendor.calls) == calls


async def test_what_could_never_be_carried_out_is_refused_when_it_is_asked(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        await threshold(till, "0.00")
        review = await till.in_review()
        with pytest.raises(Invalid, match="not a safe answer"):
            await asked(till, review, Answer.SEND_AGAIN)
        with pytest.raises(Invalid, match="which outcome"):
            await asked(till, review, Answer.HAPPENED)
        for effect_id, revision, error in ((review.effect.id, 1, Stale), (uuid4(), 1, Invalid)):
            given = ReviewAnswer(effect_id, revision, Answer.DID_NOT, "looked")
            with pytest.raises(error):
                async with till.begin() as tx:
                    await submit(tx, actions(till)["answer review"], given, "ada", "why")
        assert await approvals(till.read, None) == []
        assert await till.states() == {"p-1": "review"}


async def test_asking_twice_waits_once_and_another_answer_must_wait(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        await threshold(till, "0.00")
        review = await till.in_review()
        first = await waiting(till, review)
        assert await waiting(till, review, by="cyd") == first
        with pytest.raises(Invalid, match=f"approval {first.id} of ada .* is already waiting with a different request"):
            await asked(till, review, Answer.HAPPENED, outcome={"number": "n-1", "reference": "p-1:1"})


async def test_a_denied_approval_does_nothing_and_may_be_asked_anew(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        await threshold(till, "0.00")
        review = await till.in_review()
        approval = await waiting(till, review)
        for _ in range(2):
            async with till.begin() as tx:
                assert (await deny(tx, approval.id, "bob", "I see it booked")).state is ApprovalState.DENIED
        with pytest.raises(Invalid, match="was already denied by bob"):
            await granted(till, approval, "cyd")
        assert await till.states() == {"p-1": "review"}
        assert (await waiting(till, review)).id != approval.id


async def test_a_withdrawn_approval_is_not_granted_and_another_may_be_asked(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        await threshold(till, "0.00")
        review = await till.in_review()
        approval = await waiting(till, review)
        async with till.begin() as tx:
            await withdraw(tx, approval.action, [approval.subject], "ada", "it is asked otherwise")
        assert await approvals(till.read) == []
        with pytest.raises(Invalid, match="was withdrawn: it is asked otherwise"):
            await granted(till, approval, "cyd")
        assert await till.states() == {"p-1": "review"}
        assert (await waiting(till, review)).id != approval.id


async def test_an_approval_expires(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        await threshold(till, "0.00")
        review = await till.in_review()
        approval = await waiting(till, review)
        await till.s.clock.advance(86_401)
        assert await approvals(till.read) == []
        [expired] = await approvals(till.read, ApprovalState.EXPIRED)
        assert expired.id == approval.id
        with pytest.raises(Invalid, match=f"approval {approval.id} expired"):
            await granted(till, approval)
        again = await waiting(till, review)
        assert (await granted(till, again)).state is ApprovalState.GRANTED


async def test_an_action_that_this_version_does_not_know_stays_waiting(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        await threshold(till, "0.00")
        approval = await waiting(till, await till.in_review())
        with pytest.raises(Invalid, match="has no action 'answer review'"):
            async with till.begin() as tx:
                await grant(tx, {}, approval.id, "bob")
        assert (await granted(till, approval)).state is ApprovalState.GRANTED


async def parked(till: Till, *minor: int) -> list[UUID]:
    """Messages that gave up, with their effects in review; returns their ids."""
    offset = await till.s.owner.fetchval("select count(*) from payonce.effects")
    reviews = [await till.in_review(f"r-{offset + number}", each) for number, each in enumerate(minor)]
    return [review.effect.message_id for review in reviews]


async def ask_redrive(till: Till, which: Filter = Filter()) -> tuple[Redrive, Any]:
    async with till.begin() as tx:
        redrive = await redrive_request(tx, till.s.admin, PAY.queue, which)
        return redrive, await submit(tx, actions(till)["redrive"], redrive, "ada", "the vendor is back")


async def test_a_redrive_is_weighed_by_what_its_messages_move(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        await threshold(till, "5.99")
        await parked(till, 100, 200, 300)
        redrive, approval = await ask_redrive(till)
        assert (redrive.count, approval.amounts) == (3, (euros("6.00"),))
        assert approval.text == (
            "redrive 3 parked messages of pay (6.00 EUR), 3 with an effect in review, which go straight back to waiting"
        )
        assert await message_states(till) == ["parked"] * 3
        assert (await granted(till, approval)).result == {"queue": "pay", "redriven": 3}
        assert await message_states(till) == ["ready"] * 3


async def test_a_message_without_open_effects_weighs_as_much_as_its_latest(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        [work] = await till.claim()
        await till.pay(work, "p-1", 100)
        await till.pay(work, "p-2", 250)
        await till.park(work, "a bug")
        await threshold(till, "2.49")
        _, approval = await ask_redrive(till)
        assert approval.amounts == (euros("2.50"),)


async def test_a_redrive_below_the_threshold_is_done_at_once(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        await parked(till, 100, 200)
        await threshold(till, "3.00")
        _, done = await ask_redrive(till)
        assert done == Executed({"queue": "pay", "redriven": 2})
        assert await message_states(till) == ["ready"] * 2


async def parked_before_any_effect(till: Till, count: int) -> None:
    for work in await till.claim(count):
        await till.park(work, "a bug")


async def test_many_messages_of_which_nobody_knows_what_they_move_need_a_second_person(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        await parked(till, 100)
        await parked_before_any_effect(till, 2)
        await threshold(till, "500.00")
        _, approval = await ask_redrive(till)
        assert isinstance(approval, Approval)
        assert approval.text == (
            "redrive 3 parked messages of pay (1.00 EUR), 2 with an unknown amount, "
            "1 with an effect in review, which go straight back to waiting"
        )
        assert await message_states(till) == ["parked"] * 3
        await granted(till, approval)
        assert await message_states(till) == ["ready"] * 3


@pytest.mark.parametrize(("count", "above"), [(1, "500.00"), (3, None)], ids=["one message", "no threshold"])
async def test_one_such_message_or_where_nobody_is_asked_at_all_needs_nobody_else(
    stage: OpenStage, count: int, above: str | None
) -> None:
    async with open_till(stage) as till:
        await parked_before_any_effect(till, count)
        if above is not None:
            await threshold(till, above)
        assert isinstance((await ask_redrive(till))[1], Executed)


async def test_what_is_parked_after_the_asking_is_not_redriven_with_it(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        await threshold(till, "1.00")
        await parked(till, 100, 100)
        _, approval = await ask_redrive(till)
        await parked(till, 900)
        assert (await granted(till, approval)).result == {"queue": "pay", "redriven": 2}
        assert sorted(await message_states(till)) == ["parked", "ready", "ready"]


async def test_a_redrive_whose_messages_changed_is_denied_and_none_is_redriven(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        await threshold(till, "1.00")
        first, _ = await parked(till, 100, 100)
        _, approval = await ask_redrive(till)
        assert await till.s.admin.redrive(PAY.queue, Filter(ids=[first])) == 1
        after = await granted(till, approval)
        assert after.state is ApprovalState.DENIED
        assert "are no longer the 2 that were shown" in after.result
        assert sorted(await message_states(till)) == ["parked", "ready"]


async def test_a_message_that_somebody_holds_denies_the_redrive_as_a_whole(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        await threshold(till, "1.00")
        first, _ = await parked(till, 100, 100)
        _, approval = await ask_redrive(till)
        async with till.s.owner.transaction():
            await till.s.owner.execute("select from payonce.messages where id = $1 for update", first)
            after = await granted(till, approval)
        assert after.state is ApprovalState.DENIED
        assert await message_states(till) == ["parked"] * 2


async def test_thresholds_are_set_listed_and_removed_under_their_makers_name(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        await threshold(till, "1.00")
        await threshold(till, "2.00")
        assert [found.above for found in await thresholds(till.read)] == [euros("2.00")]
        async with till.begin() as tx:
            await remove_threshold(tx, EUR, "root")
        with pytest.raises(Invalid, match="EUR of 2 decimals has no threshold"):
            async with till.begin() as tx:
                await remove_threshold(tx, EUR, "root")
        with pytest.raises(Invalid, match="must be 0 or more"):
            await threshold(till, "-1")
        assert len(await till.notes()) == 3


async def test_approvals_come_in_pages_the_newest_first(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        await threshold(till, "0.00")
        ids = [(await waiting(till, await till.in_review(f"p-{number}"))).id for number in range(3)]
        first = await approvals(till.read, limit=2)
        second = await approvals(till.read, limit=2, before=first[-1].id)
        assert [found.id for found in first + second] == ids[::-1]


async def in_suspense(b: Branch, minor: int) -> WriteOff:
    """A line that nobody can explain and that is about to be written off."""
    async with begin(b.s.database, b.s.feed) as tx:
        await set_threshold(tx, euros("1.00"), "root")
    b.bank.book("bank.fee", None, minor, await b.s.clock.now())
    await b.after_the_lag()
    [item] = await unmatched(b.read)
    return WriteOff(item.id, LOSSES, "the bank keeps it")


async def ask_write_off(b: Branch, given: WriteOff) -> Executed | Approval:
    async with begin(b.s.database, b.s.feed) as tx:
        return await submit(tx, write_off_action(b.s.admin), given, "ada", given.note)


@pytest.mark.parametrize("minor", [-101, 101])
async def test_a_write_off_above_the_threshold_waits_for_a_second_person(stage: OpenStage, minor: int) -> None:
    """A gain as well as a loss."""
    async with open_branch(stage) as b:
        given = await in_suspense(b, minor)
        approval = await ask_write_off(b, given)
        assert isinstance(approval, Approval)
        assert (approval.amounts, await b.held(LOSSES)) == ((euros("1.01"),), 0)
        async with begin(b.s.database, b.s.feed) as tx:
            after = await grant(tx, {"write off": write_off_action(b.s.admin)}, approval.id, "bob")
        assert (after.state, after.result["account"]) == (ApprovalState.GRANTED, LOSSES)
        assert (await b.held(SUSPENSE), await b.held(LOSSES)) == (0, -minor)


async def test_a_small_write_off_is_done_at_once(stage: OpenStage) -> None:
    async with open_branch(stage) as b:
        assert isinstance(await ask_write_off(b, await in_suspense(b, -100)), Executed)
        assert (await b.held(SUSPENSE), await b.held(LOSSES)) == (0, 100)


async def test_a_write_off_of_an_item_that_was_closed_meanwhile_is_denied(stage: OpenStage) -> None:
    async with open_branch(stage) as b:
        given = await in_suspense(b, -101)
        approval = await ask_write_off(b, given)
        assert isinstance(approval, Approval)
        async with begin(b.s.database, b.s.feed) as tx:
            await write_off(tx, given.item_id, "fees/bank", "cyd", "a fee")
        async with begin(b.s.database, b.s.feed) as tx:
            after = await grant(tx, {"write off": write_off_action(b.s.admin)}, approval.id, "bob")
        assert after.state is ApprovalState.DENIED
        assert "is now written_off" in after.result
        assert await b.held(LOSSES) == 0
