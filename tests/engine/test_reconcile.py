"""A vendor's statement against our effects: known, found, adopted, and put into suspense."""

from datetime import datetime, timedelta

import pytest

from payonce.engine.effects import Answer, answer_review
from payonce.engine.ledger import Posting, Reference, moved
from payonce.engine.messages.transaction import begin
from payonce.engine.reconcile import Direction, unmatched, write_off
from payonce.kit.outcomes import Invalid
from payonce.testing import OpenStage
from tests.engine.bank import LAG_S, MIRROR, OPENING, PAID, SUSPENSE, Bank, Branch, eur, open_branch

THEIRS, OURS, DIFFERENCE = Direction.THEIRS, Direction.OURS, Direction.DIFFERENCE


async def test_what_both_sides_know_changes_nothing(stage: OpenStage) -> None:
    async with open_branch(stage) as b:
        await b.order("p-1", "p-2")
        await b.order("w-1", way="wire")
        assert await b.work() == 3
        run = await b.after_the_lag()
        assert (run.lines, run.found, run.adopted, run.unmatched, run.missing) == (3, 0, 0, 0, 0)
        assert await b.open_items() == []
        await b.assert_books_equal()


async def test_a_payment_that_the_bank_gave_a_very_long_name_is_known_by_it(stage: OpenStage) -> None:
    async with open_branch(stage, Bank(no_clock, names="n" * 5_000)) as b:
        await b.order("p-1", "p-2")
        assert await b.work() == 2
        run = await b.after_the_lag()
        assert (run.lines, run.found, run.adopted, run.unmatched, run.missing) == (2, 0, 0, 0, 0)
        await b.assert_books_equal()


async def no_clock() -> datetime:
    raise AssertionError("the branch gives the bank its clock")


async def test_running_again_changes_nothing_more(stage: OpenStage) -> None:
    async with open_branch(stage) as b:
        await b.order("p-1", "p-2")
        await b.work()
        b.bank.book("bank.fee", None, -7, await b.s.clock.now())
        b.bank.hidden.add("n-2")
        first = await b.after_the_lag()
        assert (first.lines, first.unmatched, first.missing) == (2, 1, 1)
        count = """
            select (select count(*) from payonce.postings), (select count(*) from payonce.effect_attempts),
                (select count(*) from payonce.unmatched)
        """
        before = await b.s.owner.fetchrow(count)
        again = await b.after_the_lag()
        assert (again.found, again.adopted, again.unmatched, again.missing, again.settled) == (0, 0, 0, 0, 0)
        assert await b.s.owner.fetchrow(count) == before
        await b.assert_books_equal()


@pytest.mark.parametrize("way", ["pay", "wire"])
async def test_an_unknown_effect_on_the_statement_is_found(stage: OpenStage, way: str) -> None:
    async with open_branch(stage) as b:
        await b.order("p-1", way=way)
        b.bank.faults = ["lost after"]
        await b.work()
        assert await b.states() == {"unknown": 1}
        run = await b.after_the_lag()
        assert (run.found, run.unmatched, run.missing) == (1, 0, 0)
        assert await b.states() == {"performed": 1}
        await b.work()
        assert (await b.paid(), b.bank.times()) == (1, {"p-1:1": 1})
        await b.assert_books_equal()


async def test_what_we_forgot_and_a_payment_expects_is_adopted_and_not_sent_again(stage: OpenStage) -> None:
    async with open_branch(stage) as b:
        await b.order("p-1")
        b.bank.book("bank.pay", "p-1:1", -100, await b.s.clock.now() - timedelta(hours=2))
        run = await b.after_the_lag()
        assert (run.adopted, run.unmatched) == (1, 0)
        await b.work()
        assert (await b.paid(), b.bank.times()) == (1, {"p-1:1": 1})
        await b.assert_books_equal()


async def test_an_adopted_later_generation_ends_the_earlier_ones(stage: OpenStage) -> None:
    async with open_branch(stage) as b:
        await b.order("p-1")
        b.bank.faults = ["lost before"]
        await b.work()
        b.bank.book("bank.pay", "p-1:2", -100, await b.s.clock.now())
        assert (await b.after_the_lag()).adopted == 1
        assert await b.states() == {"abandoned": 1, "performed": 1}
        await b.work()
        assert (await b.paid(), b.bank.times()) == (1, {"p-1:2": 1})


async def test_an_adopted_effect_without_an_outcome_waits_for_a_person(stage: OpenStage) -> None:
    async with open_branch(stage) as b:
        await b.order("p-1")
        b.bank.tells_outcomes = False
        b.bank.book("bank.pay", "p-1:1", -100, await b.s.clock.now())
        await b.after_the_lag()
        await b.work()
        assert await b.states() == {"on_statement": 1}
        assert await b.open_items() == [(THEIRS, -100)]
        assert b.bank.times() == {"p-1:1": 1}
        await b.assert_books_equal()
        await answer(b, Answer.HAPPENED, {"number": "n-1"})
        run = await b.after_the_lag()
        assert run.settled == 1
        await b.s.clock.advance(3_600)
        await b.work()
        assert (await b.paid(), b.bank.times()) == (1, {"p-1:1": 1})
        await b.assert_books_equal()


async def test_an_unknown_effect_without_an_outcome_waits_for_a_person(stage: OpenStage) -> None:
    async with open_branch(stage) as b:
        await b.order("w-1", way="wire")
        b.bank.faults, b.bank.tells_outcomes = ["lost after"], False
        await b.work()
        await b.after_the_lag()
        assert await b.states() == {"on_statement": 1}


async def test_a_line_that_nobody_expects_is_in_suspense_with_its_age(stage: OpenStage) -> None:
    async with open_branch(stage) as b:
        b.bank.book("bank.pay", "stranger:1", -30, await b.s.clock.now())
        b.bank.book("bank.interest", None, 5, await b.s.clock.now())
        run = await b.after_the_lag()
        assert (run.adopted, run.unmatched) == (0, 2)
        assert await b.open_items() == [(THEIRS, -30), (THEIRS, 5)]
        assert (await b.held(SUSPENSE), await b.held(MIRROR)) == (25, OPENING - 25)
        await b.s.clock.advance(7_200)
        [first, _] = await unmatched(b.read, "bank")
        assert 7_200 <= first.age_s < 7_300
        await b.assert_books_equal()


async def test_a_line_in_suspense_that_is_expected_later_is_adopted_and_posted_back(stage: OpenStage) -> None:
    async with open_branch(stage) as b:
        b.bank.book("bank.pay", "p-1:1", -100, await b.s.clock.now())
        await b.after_the_lag()
        await b.order("p-1")
        run = await b.after_the_lag()
        assert (run.adopted, run.settled) == (1, 1)
        await b.work()
        assert await b.open_items() == []
        assert (await b.held(SUSPENSE), b.bank.times()) == (0, {"p-1:1": 1})
        await b.assert_books_equal()


async def test_money_that_comes_in_is_never_taken_for_a_payment_of_ours(stage: OpenStage) -> None:
    """Anybody can send us a cent with the reference of our next payment, and a service may be careless about it."""

    async def expect_anything(*_: object) -> bool:
        return True

    async with open_branch(stage, expects=expect_anything) as b:
        await b.order("p-1")
        b.bank.faults = ["lost before"]
        await b.work()
        for reference in ("p-1:1", "p-2:1"):
            b.bank.book("bank.pay", reference, 100, await b.s.clock.now())
        run = await b.after_the_lag()
        assert (run.found, run.adopted, run.unmatched) == (0, 0, 2)
        assert await b.states() == {"unknown": 1}


async def test_a_payment_that_the_bank_does_not_show_is_missing_after_the_lag_only(stage: OpenStage) -> None:
    async with open_branch(stage) as b:
        await b.order("p-1")
        await b.work()
        b.bank.hidden.add("n-1")
        assert (await b.reconcile()).missing == 0
        run = await b.after_the_lag()
        assert (run.missing, run.unmatched) == (1, 0)
        assert await b.open_items() == [(OURS, 100)]
        assert await b.states() == {"not_on_statement": 1}
        await b.assert_books_equal()
        b.bank.hidden.clear()
        late = await b.reconcile()
        assert late.settled == 1
        assert await b.open_items() == []
        assert await b.states() == {"performed": 1}
        await b.assert_books_equal()


async def test_what_may_stand_on_a_page_that_nobody_asked_for_is_not_missing(stage: OpenStage) -> None:
    async with open_branch(stage) as b:
        await b.order("w-1", way="wire")
        b.bank.faults = ["lost after"]
        await b.work()
        await b.s.clock.advance(7_200)
        await b.work()
        assert await b.paid() == 1
        await b.s.clock.advance(LAG_S + 1)
        run = await b.reconcile(since=await b.s.clock.now() - timedelta(hours=1))
        assert (run.lines, run.missing) == (0, 0)


async def test_a_missing_payment_that_did_not_happen_stays_in_suspense_until_its_posting_is_taken_back(
    stage: OpenStage,
) -> None:
    async with open_branch(stage) as b:
        await b.order("p-1")
        await b.work()
        assert await b.held(PAID) == 100
        b.bank.booked = []
        await b.after_the_lag()
        await answer(b, Answer.DID_NOT)
        run = await b.after_the_lag()
        assert (run.settled, run.missing, await b.open_items()) == (0, 0, [(OURS, 100)])
        await b.assert_books_equal()
        await written_off(b, PAID)
        assert (await b.held(PAID), await b.held(SUSPENSE), await b.open_items()) == (0, 0, [])
        await b.after_the_lag()
        await b.assert_books_equal()


async def test_a_missing_payment_that_the_books_do_not_have_goes_back_to_the_mirror_account(stage: OpenStage) -> None:
    """Its handler never posted it, or the service reversed it itself."""
    async with open_branch(stage) as b:
        await b.order("p-1")
        await b.work()
        b.bank.booked = []
        await b.after_the_lag()
        with pytest.raises(Invalid, match="where the item comes from"):
            await written_off(b, MIRROR)
        await answer(b, Answer.DID_NOT)
        async with begin(b.s.database, b.s.feed) as tx:
            await tx.post(Posting("back", Reference("payment", "p-1"), moved(eur(100), PAID, MIRROR)))
        await b.after_the_lag()
        assert await b.held(MIRROR) == b.bank.balance + 100
        await written_off(b, MIRROR)
        assert (await b.held(PAID), await b.held(SUSPENSE), await b.open_items()) == (0, 0, [])
        await b.after_the_lag()
        await b.assert_books_equal()


async def test_a_different_amount_is_in_suspense_by_the_difference(stage: OpenStage) -> None:
    async with open_branch(stage) as b:
        await b.order("p-1")
        b.bank.faults = ["lost after"]
        await b.work()
        [made] = b.bank.booked
        b.bank.booked = [type(made)(made.number, made.kind, made.reference, -103, made.at)]
        run = await b.after_the_lag()
        assert (run.found, run.unmatched) == (1, 1)
        await b.work()
        assert await b.open_items() == [(DIFFERENCE, -3)]
        await b.assert_books_equal()
        b.bank.booked = [made]
        assert (await b.after_the_lag()).settled == 1
        assert await b.open_items() == []
        await b.assert_books_equal()


async def test_a_payment_that_the_bank_made_twice_is_in_suspense_once_and_before_a_person(stage: OpenStage) -> None:
    async with open_branch(stage) as b:
        await b.order("p-1")
        await b.work()
        await b.after_the_lag()
        b.bank.book("bank.pay", "p-1:1", -100, await b.s.clock.now())
        run = await b.after_the_lag()
        assert (run.unmatched, await b.open_items()) == (1, [(THEIRS, -100)])
        assert await b.states() == {"contradiction": 1}
        await b.assert_books_equal()
        await answer(b, Answer.HAPPENED, {"number": "n-1"})
        await b.after_the_lag()
        assert await b.states() == {"performed": 1}


async def test_a_second_line_for_a_payment_is_no_match_even_if_neither_has_a_name(stage: OpenStage) -> None:
    async with open_branch(stage) as b:
        await b.order("p-1")
        await b.work()
        await b.s.owner.execute("update payonce.effects set vendor_ref = null")
        await b.after_the_lag()
        b.bank.book("bank.pay", "p-1:1", -100, await b.s.clock.now())
        await b.after_the_lag()
        assert await b.open_items() == [(THEIRS, -100)]
        assert await b.states() == {"contradiction": 1}


async def test_one_name_of_the_vendors_for_two_payments_is_put_before_a_person(stage: OpenStage) -> None:
    async with open_branch(stage) as b:
        await b.order("p-1", "p-2")
        await b.work()
        [first, second] = b.bank.booked
        b.bank.booked = [type(first)(first.number, first.kind, "p-2:1", first.minor, first.at), second]
        await b.after_the_lag()
        assert await b.states() == {"performed": 1, "same_reference": 1}


async def test_a_refused_payment_on_the_statement_is_in_suspense_and_before_a_person(stage: OpenStage) -> None:
    async with open_branch(stage) as b:
        await b.order("p-1")
        await b.work()
        await b.s.owner.execute("update payonce.effects set state = 'refused', outcome = null, vendor_ref = null")
        await b.s.owner.execute("update payments set state = 'failed'")
        run = await b.after_the_lag()
        assert (run.unmatched, await b.states()) == (1, {"contradiction": 1})


async def written_off(b: Branch, account: str) -> None:
    [item] = await unmatched(b.read)
    async with begin(b.s.database, b.s.feed) as tx:
        await write_off(tx, item.id, account, "ann", "the bank never made it")


async def answer(b: Branch, said: Answer, outcome: object = None) -> None:
    row = await b.s.owner.fetchrow("select id, revision from payonce.effects where state = 'review'")
    assert row is not None
    async with begin(b.s.database, b.s.feed) as tx:
        await answer_review(tx, row["id"], said, "ann", "looked", revision=row["revision"], outcome=outcome)
