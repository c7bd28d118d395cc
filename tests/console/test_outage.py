"""An outage on the first page: vendors that fail, retries apart from errors, and cards that lead to what they count."""

import re

from payonce.engine.messages.policy import Policy
from payonce.engine.monitoring.history import RunCounts
from payonce.engine.monitoring.metrics import SETTLES
from payonce.engine.monitoring.vendor_calls import CallCounts, call_observer
from payonce.testing import OpenStage
from tests.console.renewals import POLICY, park, put
from tests.console.visitor import Answer, console, visiting


def queues_of(page: Answer) -> list[str]:
    return re.findall(r'<a class="name" href="/console/queues/([^"?]+)"', page.text.partition("<h2>Queues</h2>")[2])


def card(page: Answer, title: str) -> tuple[str, str]:
    """Where it leads, and what it says."""
    found = re.search(rf'<a href="([^"]+)" class="card [a-z]+"><h3>{title}</h3>(.*?)</a>', page.text, re.DOTALL)
    assert found, f"no card {title}: {page.words}"
    return found[1], " ".join(re.sub(r"<[^>]*>", " ", found[2]).split())


async def test_a_vendor_that_fails_has_a_card_that_says_how(stage: OpenStage) -> None:
    async with stage() as s, console(s) as address, visiting(address) as visitor:
        counts = CallCounts(s.database)
        for outcome, times in (("ok", 10), ("no_answer", 30)):
            for _ in range(times):
                call_observer("exchange")("estimate", outcome, 0.1)
        assert "All quiet" in (await visitor.get("/")).words
        await counts.tick()
        page = await visitor.get("/")
        href, said = card(page, "exchange fails")
        assert "75 % of 40 calls within 5 min: 30 got no answer" in said
        vendors = (await visitor.get(href)).words
        assert "exchange fails 40 75 % 30 got no answer estimate" in vendors


async def test_retries_are_counted_apart_from_errors_and_failing_queues_come_first(stage: OpenStage) -> None:
    async with stage() as s, console(s) as address, visiting(address) as visitor:
        await s.feed.declare([Policy(name) for name in ("a-quiet", "b-retrying", "c-failing", "d-paused")])
        await s.admin.pause("d-paused", "for a while", "ann")
        counts = RunCounts(s.database)
        SETTLES.labels("b-retrying", "retry").inc(50)
        SETTLES.labels("c-failing", "failed").inc(3)
        SETTLES.labels("c-failing", "success").inc(70)
        await counts.tick()
        page = await visitor.get("/")
        assert queues_of(page) == ["c-failing", "b-retrying", "d-paused", "a-quiet"]
        rows = dict(zip(queues_of(page), page.text.partition("<h2>Queues</h2>")[2].split("<tr>")[2:], strict=True))
        cells = {name: dict(re.findall(r'data-label="(Retries|Errors)">.*?>(\d+)<', row)) for name, row in rows.items()}
        assert 'href="/console/jobs?queue=b-retrying&amp;status=retry"' in page.text
        assert 'href="/console/jobs?queue=c-failing&amp;status=errors"' in page.text
        assert cells["b-retrying"] == {"Retries": "50", "Errors": "0"}
        assert cells["c-failing"] == {"Retries": "0", "Errors": "3"}


async def test_cards_lead_to_exactly_what_they_counted(stage: OpenStage) -> None:
    async with stage() as s, console(s) as address, visiting(address) as visitor:
        await park(s, "the bank is away", count=2)
        href, said = card(await visitor.get("/"), "Parked messages")
        assert href == f"/console/queues/{POLICY.queue}?state=parked"
        assert "the bank is away" in said
        await s.feed.declare([Policy("another")])
        await s.owner.execute(
            """
            insert into payonce.messages (id, queue, action, payload, state, last_error)
            select gen_random_uuid(), 'another', '', '{}', 'parked', 'row ' || n || ' is not there yet'
            from generate_series(1, 63) n
            """
        )
        href, said = card(await visitor.get("/"), "Parked messages")
        assert (href, said.split()[0]) == ("/console/parked", "65")
        page = (await visitor.get(href)).words
        assert "65 parked messages need an operator." in page
        assert re.search(r"63 row \d+ is not there yet another", page)
        assert f"2 the bank is away (gave up after 3 of 3 attempts) {POLICY.queue}" in page


async def test_paused_queues_are_listed_alone(stage: OpenStage) -> None:
    async with stage() as s, console(s) as address, visiting(address) as visitor:
        await put(s, {})
        await s.feed.declare([Policy("one"), Policy("two")])
        await s.admin.pause("one", "x", "ann")
        assert card(await visitor.get("/"), "Paused queues")[0] == "/console/queues/one"
        await s.admin.pause("two", "x", "ann")
        href, _ = card(await visitor.get("/"), "Paused queues")
        page = await visitor.get(href)
        assert POLICY.queue not in page.text.partition("<tbody>")[2]
        assert "Paused queues only." in page.words
        for name in ("one", "two"):
            await s.admin.resume(name, "ann")
        assert "No queue is paused." in (await visitor.get(href)).words


async def test_nothing_parked_says_so(stage: OpenStage) -> None:
    async with stage() as s, console(s) as address, visiting(address) as visitor:
        assert "No message is parked" in (await visitor.get("/parked")).words


async def test_errors_of_a_queue_lead_to_the_runs_that_ended_so(stage: OpenStage) -> None:
    async with stage() as s, console(s) as address, visiting(address) as visitor:
        await park(s, "the bank is away", count=2)
        page = await visitor.get(f"/jobs?queue={POLICY.queue}&status=errors")
        assert page.text.count("the bank is away") >= 2
        statuses = set(re.findall(r'data-label="Status">.*?>(\w+)<', page.text))
        assert statuses == {"parked"}
        everything = await visitor.get(f"/jobs?queue={POLICY.queue}")
        assert set(re.findall(r'data-label="Status">.*?>(\w+)<', everything.text)) == {"parked", "retry"}
