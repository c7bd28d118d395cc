"""The gateway's balance transactions against our record, in both directions."""

from datetime import timedelta

import pytest

from payonce.engine.audit.references import check_references
from payonce.engine.reconcile import Run, reconcile, unmatched
from payonce.services.billing.payments import REFERENCES, statements
from payonce.services.billing.payments.effects import reference_of, sent_as
from payonce.services.billing.payments.model import State
from payonce.services.billing.payments.reconciliation import GatewayStatement
from payonce.testing import OpenStage
from payonce.testing.faults import Fault, Script
from payonce.vendors.gateway import port
from tests.services.billing.payments.till import Till, open_till


async def reconciled(till: Till) -> Run:
    [source] = statements([till.client, till.notifier])
    till.clock.now = await till.s.clock.advance(3_600.0)
    since = till.clock.now - timedelta(days=2)
    return await reconcile(till.s.database, till.s.feed, source, by="ann", holder="test", since=since)


async def test_charges_and_refunds_are_on_the_statement_and_explained(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        await till.card()
        await till.charged(action="trial", amount_minor=100)
        await till.charged("inv-2")
        run = await reconciled(till)
        assert (run.lines, run.unmatched, run.missing, run.found) == (3, 0, 0, 0)
        assert await till.broken() == {}
        ours = {kind: query for kind, query in REFERENCES.items() if kind != "test"}
        found = await check_references(ours, till.s.read)
        assert [each for each in found if "test" not in str(each)] == []


async def test_a_charge_in_doubt_is_found_on_the_statement(stage: OpenStage) -> None:
    async with open_till(stage, Script([None, Fault.TIMEOUT_AFTER])) as till:
        await till.card()
        await till.ask()
        await till.drain()
        run = await reconciled(till)
        assert (run.lines, run.found, run.unmatched) == (1, 1, 0)
        requests = till.gateway.meter.requests
        await till.run()
        assert (await till.transaction()).state is State.SUCCEEDED
        assert till.gateway.meter.requests == requests
        assert till.captures() == 1
        assert await till.broken() == {}


async def test_a_charge_that_we_never_made_is_in_suspense(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        card = await till.card()
        await till.client.charge(port.ChargeOrder("k", 700, "AED", card.token, "nobody:1"))
        run = await reconciled(till)
        assert (run.lines, run.unmatched) == (1, 1)
        [item] = await unmatched(till.s.read)
        assert item.amount.minor == 700
        # What is in suspense is not what payments promise of their own.
        assert await till.broken() == {}


async def test_a_charge_that_the_gateway_does_not_show_is_missing(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        await till.card()
        await till.charged()
        till.gateway.books.lines.clear()
        run = await reconciled(till)
        assert run.missing == 1


async def test_a_charge_that_a_restore_has_forgotten_is_adopted_and_not_made_again(stage: OpenStage) -> None:
    async with open_till(stage, Script([None, Fault.TIMEOUT_AFTER])) as till:
        await till.card()
        await till.ask()
        await till.drain()
        await till.s.owner.execute("update payonce.effects set key = 'x', state = 'abandoned', scope = null")
        run = await reconciled(till)
        assert run.adopted == 1
        await till.run()
        assert (await till.transaction()).state is State.SUCCEEDED
        assert till.captures() == 1


async def test_a_statement_of_many_pages_is_read_from_where_its_time_begins(
    stage: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_till(stage) as till:
        await till.card()
        for number in range(6):
            await till.ask(f"inv-{number}")
            await till.drain()
            await till.s.clock.advance(60)
        whole = till.client.statement

        async def in_twos(after: str | None = None, limit: int = 2) -> port.StatementPage:
            return await whole(after, limit)

        monkeypatch.setattr(till.client, "statement", in_twos)
        source = GatewayStatement(till.client)
        now = await till.s.clock.now()
        since, until = now - timedelta(days=1), now + timedelta(days=1)
        everything = [entry.vendor_ref async for entry in source.entries(since, until)]
        assert len(everything) == 6
        before = till.gateway.meter.requests
        late = [entry.vendor_ref async for entry in source.entries(now - timedelta(seconds=100), until)]
        assert late == everything[-1:]
        assert till.gateway.meter.requests == before + 1


def test_a_reference_says_the_generation_only_when_a_person_began_another() -> None:
    assert sent_as("inv:3:1") == "inv:3"
    assert sent_as("inv:3:2") == "inv:3:2"
    assert reference_of("inv:3", key_colons=1) == "inv:3:1"
    assert reference_of("inv:3:2", key_colons=1) == "inv:3:2"
    assert reference_of("refund", key_colons=0) == "refund:1"
