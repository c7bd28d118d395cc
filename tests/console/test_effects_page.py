"""The effects inbox and approvals: the question, only the safe answers, and a second person where there must be one."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from payonce.engine.controls import set_threshold
from payonce.engine.effects import Review, Safety
from payonce.engine.operators import Role
from payonce.testing import OpenStage
from tests.console.visitor import Answer, Visitor, console, give_login, notes_of, visiting
from tests.engine.controls_stage import Till, euros, open_till


@asynccontextmanager
async def office(
    stage: OpenStage, safety: Safety | None = None
) -> AsyncIterator[tuple[Till, Review, Visitor, Visitor]]:
    """An effect in review; ann, who answers, and bob, who may agree."""
    async with (
        open_till(stage, safety) as till,
        console(till.s) as address,
        visiting(address) as ann,
        visiting(address) as bob,
    ):
        for name, visitor, role in (("ann", ann, Role.OPERATOR), ("bob", bob, Role.APPROVER)):
            await give_login(till.s, name, role)
            await visitor.log_in(name)
        yield till, await till.in_review("p-1", 30_000), ann, bob


async def answered(visitor: Visitor, review: Review, **form: str) -> Answer:
    """Through both steps, as far as they go."""
    path = f"/effects/{review.effect.id}"
    page = await visitor.get(path)
    form = {"revision": page.field("revision"), "why": "by their statement", **form}
    check = await visitor.submit(page, f"{path}/answer", **form)
    if check.status != 200 or "Nothing is changed yet" not in check.words:
        return check
    return await visitor.submit(check, f"{path}/answer", **form, sure="yes")


async def test_the_inbox_shows_what_waits_with_its_amount_and_the_way_to_answer(stage: OpenStage) -> None:
    async with office(stage) as (_, review, ann, _):
        page = await ann.get("/effects")
        assert "bank.pay" in page.words
        assert "300.00 EUR" in page.words
        assert f"/console/effects/{review.effect.id}#answer" in page.text
        assert "No effect" not in page.words
        assert "No effect has an unknown outcome." in (await ann.get("/effects?state=unknown")).words


async def test_only_the_safe_answers_are_offered_and_another_one_is_refused(stage: OpenStage) -> None:
    async with office(stage) as (till, review, ann, _):
        page = await ann.get(f"/effects/{review.effect.id}")
        assert review.question in page.words
        assert 'value="happened"' in page.text
        assert 'value="did_not"' in page.text
        assert 'value="send_again"' not in page.text
        refused = await answered(ann, review, answer="send_again")
        assert refused.status == 400
        assert "send_again is not a safe answer" in refused.words
        assert await till.states() == {"p-1": "review"}


@pytest.mark.parametrize(
    ("fate", "said"),
    [
        ("update payonce.messages set state = 'ready'", "its message is due or running, and continues by itself"),
        (
            "delete from payonce.messages",
            "its message is gone, and nothing continues it; put a message, or see: payonce audit run",
        ),
    ],
)
async def test_an_answer_says_what_becomes_of_the_message(stage: OpenStage, fate: str, said: str) -> None:
    async with office(stage) as (till, review, ann, _):
        await till.s.owner.execute(fate)
        assert f"The effect is abandoned; {said}." in (await answered(ann, review, answer="did_not")).words


async def test_looking_at_what_follows_changes_nothing_and_the_second_step_does_it(stage: OpenStage) -> None:
    async with office(stage) as (till, review, ann, _):
        path = f"/effects/{review.effect.id}"
        page = await ann.get(path)
        form = {"answer": "did_not", "revision": page.field("revision"), "why": "not in their statement"}
        check = await ann.submit(page, f"{path}/answer", **form)
        assert check.status == 200
        assert "Nothing is changed yet" in check.words
        assert "300.00 EUR" in check.words
        assert await till.states() == {"p-1": "review"}
        done = await ann.submit(check, f"{path}/answer", **form, sure="yes")
        assert "The effect is abandoned; its message continues." in done.words
        assert await till.states() == {"p-1": "abandoned"}
        [(actor, text)] = await notes_of(till.s, str(review.effect.id))
        assert actor == "ann"
        assert "not in their statement" in text


async def test_that_it_happened_needs_an_outcome_that_can_be_read(stage: OpenStage) -> None:
    async with office(stage) as (till, review, ann, _):
        for outcome, complaint in (("", "happened with which outcome?"), ("{nonsense", "not usable JSON")):
            refused = await answered(ann, review, answer="happened", outcome=outcome)
            assert refused.status == 400
            assert complaint in refused.words
            assert "by their statement" in refused.text, "what was typed is kept"
        done = await answered(
            ann, review, answer="happened", outcome='{"number": "n-9", "reference": "p-1:1"}', vendor_ref="n-9"
        )
        assert "The effect is performed" in done.words
        assert await till.states() == {"p-1": "performed"}


async def test_an_answer_to_what_has_changed_since_is_refused_and_the_page_shows_the_news(stage: OpenStage) -> None:
    async with office(stage) as (_, review, ann, bob):
        path = f"/effects/{review.effect.id}"
        page = await ann.get(path)
        await answered(bob, review, answer="did_not")
        form = {"answer": "did_not", "revision": page.field("revision"), "why": "not there", "sure": "yes"}
        late = await ann.submit(page, f"{path}/answer", **form)
        assert late.status == 409
        assert "has changed since it was shown" in late.words
        assert "did not by bob" in late.words.replace("did_not", "did not")


async def threshold(till: Till, above: str) -> None:
    async with till.begin() as tx:
        await set_threshold(tx, euros(above), "root")


async def test_above_the_threshold_it_is_done_when_a_second_person_agrees_and_not_before(stage: OpenStage) -> None:
    async with office(stage) as (till, review, ann, bob):
        await threshold(till, "100.00")
        asked = await answered(ann, review, answer="did_not")
        assert "Nothing is changed until a second person grants" in asked.words
        assert await till.states() == {"p-1": "review"}
        path = asked.url.partition("/console")[2]
        assert "You made this request, so another approver must decide." in asked.words
        assert "ann requested" in (await ann.get(f"/effects/{review.effect.id}")).words
        assert "#answer" not in (await ann.get(f"/effects/{review.effect.id}")).text
        page = await bob.get(path)
        assert "300.00 EUR" in page.words
        done = await bob.submit(page, f"{path}/grant", why="I looked, too")
        assert "is granted and executed" in done.words
        assert await till.states() == {"p-1": "abandoned"}
        assert [actor for actor, _ in await notes_of(till.s, str(review.effect.id))] == ["ann", "bob"]


async def test_whoever_asked_cannot_agree_although_their_role_may(stage: OpenStage) -> None:
    async with office(stage) as (till, review, _, bob):
        await threshold(till, "100.00")
        asked = await answered(bob, review, answer="did_not")
        path = asked.url.partition("/console")[2]
        assert "You made this request" in asked.words
        assert f"{path}/grant" not in asked.text
        for verb in ("grant", "deny"):
            refused = await bob.submit(asked, f"{path}/{verb}", why="me again")
            assert refused.status == 400
            assert "a second person must decide" in refused.words
        assert await till.states() == {"p-1": "review"}


async def test_a_denied_approval_does_nothing_and_is_listed_as_such(stage: OpenStage) -> None:
    async with office(stage) as (till, review, ann, bob):
        await threshold(till, "100.00")
        asked = await answered(ann, review, answer="did_not")
        path = asked.url.partition("/console")[2]
        denied = await bob.submit(await bob.get(path), f"{path}/deny", why="it is booked")
        assert "is denied; nothing was changed" in denied.words
        assert await till.states() == {"p-1": "review"}
        assert "Nothing waits for a second person." in (await ann.get("/approvals")).words
        assert "answer did_not for bank.pay p-1:1" in (await ann.get("/approvals?state=denied")).words


async def test_what_expired_is_listed_as_expired(stage: OpenStage) -> None:
    async with office(stage) as (till, review, ann, bob):
        await threshold(till, "100.00")
        await answered(ann, review, answer="did_not")
        await till.s.clock.advance(2 * 86_400)
        # A session does not last that long.
        await bob.log_in("bob")
        assert "answer did_not for bank.pay" in (await bob.get("/approvals?state=expired")).words


async def change_threshold(visitor: Visitor, verb: str, **form: str) -> Answer:
    """Through both steps, as far as they go."""
    path = f"/approvals/thresholds/{verb}"
    check = await visitor.submit(await visitor.get("/approvals"), path, **form)
    if "Nothing is changed yet" not in check.words:
        return check
    return await visitor.submit(check, path, **form, sure="yes", why="we grow")


async def test_a_threshold_is_set_and_lowered_by_one_person(stage: OpenStage) -> None:
    async with office(stage) as (_, _, _, bob):
        page = await bob.get("/approvals")
        assert "No threshold is set" in page.words
        for amount in ("250.00", "100.00"):
            page = await bob.submit(page, "/approvals/thresholds/set", asset="EUR", amount=amount)
            assert f"Above {amount} EUR a second person must now agree." in page.words
        odd = await bob.submit(page, "/approvals/thresholds/set", asset="ODD", amount="1")
        assert (odd.status, "fill in its decimals" in odd.words) == (400, True)


@pytest.mark.parametrize(
    "way", [("remove", {"decimals": "2"}), ("set", {"amount": "1000.00"})], ids=["remove", "raise"]
)
async def test_one_approver_alone_cannot_step_over_the_threshold(
    stage: OpenStage, way: tuple[str, dict[str, str]]
) -> None:
    async with office(stage) as (till, review, _, bob):
        await threshold(till, "100.00")
        verb, form = way
        asked = await change_threshold(bob, verb, asset="EUR", **form)
        assert "Nothing is changed until a second person grants" in asked.words
        path = asked.url.partition("/console")[2]
        refused = await bob.submit(asked, f"{path}/grant", why="me again")
        assert "a second person must decide" in refused.words
        await answered(bob, review, answer="did_not")
        assert await till.states() == {"p-1": "review"}


async def test_a_threshold_is_removed_when_a_second_person_agrees(stage: OpenStage) -> None:
    async with office(stage) as (till, _, _, bob):
        await threshold(till, "100.00")
        await give_login(till.s, "cyd", Role.APPROVER)
        asked = await change_threshold(bob, "remove", asset="EUR", decimals="2")
        path = asked.url.partition("/console")[2]
        async with visiting(bob.address) as cyd:
            await cyd.log_in("cyd")
            page = await cyd.get(path)
            assert "bob asks to remove the threshold of 100.00 EUR" in page.words
            await cyd.submit(page, f"{path}/grant", why="we ended that")
            assert "No threshold is set" in (await cyd.get("/approvals")).words


async def test_what_vendors_and_people_write_is_text_and_secrets_stay_hidden(stage: OpenStage) -> None:
    async with office(stage) as (till, review, ann, _):
        hostile = "<script>alert(1)</script> api_key=abcdef123456"
        await till.s.owner.execute("update payonce.effects set reason = $1, vendor_ref = $2", hostile, "<b>x</b>")
        for path in ("/effects", f"/effects/{review.effect.id}"):
            page = await ann.get(path)
            assert "<script>alert" not in page.text
            assert "<b>x" not in page.text
            assert "abcdef123456" not in page.text


@pytest.mark.parametrize(
    "path",
    [
        "/effects/nonsense",
        "/effects/00000000-0000-0000-0000-000000000000",
        "/effects?state=odd",
        "/effects?after=x",
        "/effects?vendor=%00",
        "/approvals/x",
        "/approvals/999999999999999999",
        "/approvals?before=-1",
        "/freezes/x",
        "/freezes/1",
        "/freezes?before=%F0%9F%92%A3",
        "/outbox/none",
        "/outbox/none?after=1",
        "/reconcile/x",
        "/reconcile/00000000-0000-0000-0000-000000000000",
        "/reconcile?after=x",
        "/audit?since=tomorrow",
        "/audit?severity=LOUD",
        "/audit?before=99999999999999999999",
        "/leases?after=%00",
        "/effects?after=%C3%28",
    ],
)
async def test_a_bad_address_is_told_what_is_wrong_with_it(stage: OpenStage, path: str) -> None:
    async with stage() as s, console(s) as address, visiting(address) as visitor:
        page = await visitor.get(path)
        assert page.status in (400, 404), page.words
        assert "internal error of payonce" not in page.words
