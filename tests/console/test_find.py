"""Finding: whatever a person holds leads to its object, and a trace leads to the object that it is about."""

import re
from urllib.parse import quote

import pytest

from payonce.engine.monitoring.lookup import MATCHES_MAX, LookupResult
from payonce.services.payouts.policies import QUEUES
from payonce.testing import OpenStage, Servers
from tests.console import billing_samples
from tests.console.payouts_samples import held, multiply, open_console, order
from tests.console.visitor import Answer, StageContext, console, visiting
from tests.services.payouts.hostpay_stage import ETH_CLIENT


@pytest.fixture(scope="session")
def servers(shared_servers: Servers) -> Servers:
    return shared_servers


def found(page: Answer) -> dict[str, str]:
    """The objects by their addresses, each with what it was found by."""
    rows = page.text.partition('id="matches"')[2].partition("</table>")[0].split("<tr>")[2:]
    return {
        re.search(r'href="/console([^"]+)"', row)[1]: re.search(r'data-label="Found by">([^<]*)<', row)[1]  # type: ignore[index]
        for row in rows
    }


async def test_a_payout_is_found_by_everything_that_anybody_holds_of_it(stage: OpenStage) -> None:
    async with open_console(stage) as (house, address), visiting(address) as visitor:
        payout = await order(house)
        await house.run()
        swap = await house.swap(payout)
        transaction = await house.s.owner.fetchval("select hash from payouts.wallet_attempts")
        to_the_client = str(house.changenow.books.entries[str(swap.cn_api_id)].payout_hash)
        page = f"/payouts/{payout.id}"
        for held_by_person, matched in (
            (payout.id, "id"),
            (payout.payment_id or "", "payment id"),
            (payout.unique_id, "unique id"),
            (payout.unique_id.lower(), "unique id"),
            (swap.id, "swap"),
            (swap.cn_api_id or "", "exchange id"),
            (transaction, "transaction"),
            (transaction.upper().replace("0X", "0x"), "transaction"),
            (to_the_client, "transaction to the client"),
            (payout.wallet_address, "address"),
            (payout.wallet_address.upper(), "address"),
            (swap.payin_address or "", "deposit address"),
        ):
            answer = await visitor.get(f"/trace?id={quote(held_by_person)}")
            assert (answer.status, found(answer).get(page)) == (200, matched), held_by_person
            assert '<ol class="timeline">' in answer.text, f"{matched} leads to the history too"
        assert to_the_client in (await visitor.get(page)).text


async def test_of_many_payouts_to_an_address_the_newest_are_listed_and_one_is_told_of(stage: OpenStage) -> None:
    async with open_console(stage) as (house, address), visiting(address) as visitor:
        first, last = await order(house, 1), await order(house, 2)
        await house.run()
        assert list(found(await visitor.get(f"/trace?id={last.wallet_address}"))) == [
            f"/payouts/{last.id}",
            f"/payouts/{first.id}",
        ]
        page = await visitor.get(f"/trace?id={last.wallet_address}")
        assert f"History of payout {last.unique_id}" in page.words
        assert "Only the newest" not in page.words
        await multiply(house, 24)
        page = await visitor.get(f"/trace?id={last.wallet_address}")
        assert len(found(page)) == MATCHES_MAX
        assert f"Only the newest {MATCHES_MAX} matches of each kind are shown" in page.words


async def test_an_evm_address_is_found_in_any_spelling(stage: OpenStage) -> None:
    async with open_console(stage) as (house, address), visiting(address) as visitor:
        payout = await order(house, address=ETH_CLIENT, coin="eth")
        for spelling in (ETH_CLIENT, ETH_CLIENT.upper().replace("0X", "0x"), ETH_CLIENT.upper()):
            assert f"/payouts/{payout.id}" in found(await visitor.get(f"/trace?id={spelling}")), spelling


async def test_a_trace_links_to_the_object_it_is_about(stage: OpenStage) -> None:
    async with open_console(stage) as (house, address), visiting(address) as visitor:
        payout = await held(house, trace="trace-of-the-payment")
        page = await visitor.get("/trace?id=trace-of-the-payment")
        assert f"/payouts/{payout.id}" in found(page)
        effect = await house.s.owner.fetchval("select id from payonce.effects limit 1")
        both = found(await visitor.get(f"/trace?id={effect}"))
        assert set(both) == {f"/effects/{effect}", f"/payouts/{payout.id}"}


async def test_queues_are_found_by_a_part_of_their_names(stage: OpenStage) -> None:
    async with open_console(stage) as (_, address), visiting(address) as visitor:
        [queue] = found(await visitor.get(f"/trace?id={QUEUES[2].queue}"))
        assert queue == f"/queues/{QUEUES[2].queue}"
        assert set(found(await visitor.get("/trace?id=GCSPLIT"))) == {f"/queues/{each.queue}" for each in QUEUES}


@pytest.mark.parametrize(
    ("held_by_person", "path", "matched"),
    [
        ("customer7@example.com", "/billing/customers/c-7", "e-mail address"),
        ("Customer7@Example.com", "/billing/customers/c-7", "e-mail address"),
        ("c-7", "/billing/customers/c-7", "id"),
        ("crm/ü-7", "/billing/customers/c-7", "external id"),
        ("s-7", "/billing/subscriptions/s-7", "id"),
        ("INV-7-1", "/billing/invoices/i-7-1", "number"),
        ("inv-7-1", "/billing/invoices/i-7-1", "number"),
        ("i-7-1", "/billing/invoices/i-7-1", "id"),
        ("t-7-1", "/billing/invoices/i-7-1", "id"),
        ("ch-i-7-1", "/billing/invoices/i-7-1", "id at the gateway"),
        ("i-7-1:1", "/billing/invoices/i-7-1", "key"),
        ("evt-1", "/billing/deliveries/evt-1", "event id"),
    ],
)
async def test_what_customers_and_the_gateway_name_is_found(
    stage: OpenStage, held_by_person: str, path: str, matched: str
) -> None:
    async with billing_samples.open_console(stage) as (s, address), visiting(address) as visitor:
        await billing_samples.fill(s, 7)
        await s.owner.execute("update subscriptions.accounts set external_id = 'crm/ü-7' where id = 'c-7'")
        await billing_samples.notify(s, "evt-1", "t-7-1", delivered=True)
        page = await visitor.get(f"/trace?id={quote(held_by_person)}")
        assert found(page).get(path) == matched
        assert (await visitor.get(path)).status == 200


async def test_what_nobody_knows_is_said_and_nothing_is_searched_where_no_service_is(stage: OpenStage) -> None:
    async with open_console(stage) as (house, address), visiting(address) as visitor:
        await house.s.owner.execute(
            "drop schema payouts cascade; drop schema subscriptions cascade; drop schema payments cascade"
        )
        page = await visitor.get("/trace?id=nobody@example.com")
        assert (page.status, "Nothing was found for nobody@example.com." in page.words) == (200, True)


async def test_a_service_that_is_slow_is_passed_over_and_named(
    stage: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def slow(read: object, what: str) -> list[LookupResult]:
        await read.fetchval("select pg_sleep(30)")  # type: ignore[attr-defined]
        return []

    async def quick(read: object, what: str) -> list[LookupResult]:
        return [LookupResult("thing", what, "/queues")]

    monkeypatch.setattr("payonce.console.pages.traces.QUERY_LIMIT_MS", 50)
    monkeypatch.setattr(StageContext, "lookups", (slow, quick))
    async with stage() as s, console(s) as address, visiting(address) as visitor:
        page = await visitor.get("/trace?id=some-thing")
        assert "1 service was not searched completely" in page.words
        assert found(page) == {"/queues": "id"}
