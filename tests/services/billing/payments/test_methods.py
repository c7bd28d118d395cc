"""Cards as the gateway's tokens: the first is the default, and a new default is told to subscriptions."""

import asyncio
from dataclasses import replace

import pytest

from payonce.kit.outcomes import Invalid, Retry, Stale
from payonce.services.billing.payments.store import payment_methods, transactions
from payonce.testing import OpenStage, eventually
from payonce.testing.faults import Fault, Script
from tests.locks import waits_for_a_lock
from tests.services.billing.payments.till import PAYS, Till, open_till


async def of(till: Till, account_id: str = "acc-1") -> list[tuple[str, bool]]:
    return [(each.id, each.is_default) for each in await payment_methods.of_account(till.s.read, account_id)]


async def test_the_first_is_the_default_and_subscriptions_hear_of_it_alone(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        first, second = await till.card(), await till.card()
        assert (first.brand, first.last4, first.is_default) == ("visa", "4242", True)
        assert await of(till) == [(second.id, False), (first.id, True)]
        assert [told["metadata"]["payment_method_id"] for told in till.subscriptions.told] == [first.id]


async def test_a_new_default_is_charged_and_told(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        await till.card()
        second = await till.card()
        async with till.s.begin() as tx:
            assert (await payment_methods.make_default(tx, "acc-1", second.id)).notice is not None
            assert (await payment_methods.make_default(tx, "acc-1", second.id)).notice is None
        await till.run()
        assert till.subscriptions.told[-1]["metadata"]["payment_method_id"] == second.id
        assert (await till.charged()).payment_method_id == second.id


async def test_two_first_cards_in_one_moment_leave_one_default(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        details = await payment_methods.describe_token(till.client, till.gateway.tokenise(PAYS))
        async with till.s.begin() as first:
            await payment_methods.attach(first, "acc-1", details)
            second = asyncio.create_task(till.card())
            await eventually(lambda: waits_for_a_lock(till.s))
        await second
        assert sum(default for _, default in await of(till)) == 1


async def test_the_same_token_again_is_the_same_card_and_never_somebody_elses(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        card = await till.card()
        details = await payment_methods.describe_token(till.client, card.token)
        async with till.s.begin() as tx:
            assert (await payment_methods.attach(tx, "acc-1", details)).method.id == card.id
            with pytest.raises(Invalid, match="already in use"):
                await payment_methods.attach(tx, "acc-2", details)


async def test_of_two_accounts_with_one_token_at_once_the_second_is_refused_in_a_sentence(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        details = await payment_methods.describe_token(till.client, till.gateway.tokenise(PAYS))

        async def attach() -> None:
            async with till.s.begin() as tx:
                await payment_methods.attach(tx, "acc-2", details)

        async with till.s.begin() as first:
            await payment_methods.attach(first, "acc-1", details)
            second = asyncio.create_task(attach())
            await eventually(lambda: waits_for_a_lock(till.s))
        with pytest.raises(Invalid, match="already in use"):
            await second
        assert await of(till, "acc-2") == []


async def test_a_token_that_the_gateway_does_not_know_is_refused(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        for token in ("pm_nobody", "4242424242424242"):
            with pytest.raises(Invalid, match="knows no such token") as no:
                await payment_methods.describe_token(till.client, token)
            assert token not in str(no.value)


async def test_a_removed_default_leaves_the_newest_of_the_others(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        first = await till.card()
        await till.card()
        third = await till.card()
        async with till.s.begin() as tx:
            await payment_methods.remove(tx, "acc-1", first.id)
        assert (await of(till))[0] == (third.id, True)
        assert len(till.subscriptions.told) == 1
        async with till.s.begin() as tx:
            with pytest.raises(payment_methods.UnknownMethod):
                await payment_methods.remove(tx, "acc-1", first.id)
            with pytest.raises(payment_methods.UnknownMethod):
                await payment_methods.remove(tx, "acc-2", third.id)


async def test_a_card_is_not_removed_while_a_charge_is_under_way_on_it(stage: OpenStage) -> None:
    async with open_till(stage, Script([None, Fault.TIMEOUT_AFTER])) as till:
        card = await till.card()
        await till.ask()
        await till.drain()
        async with till.s.begin() as tx:
            with pytest.raises(Stale, match="a charge on it is in progress"):
                await payment_methods.remove(tx, "acc-1", card.id)
        await till.run()
        async with till.s.begin() as tx:
            await payment_methods.remove(tx, "acc-1", card.id)
        assert (await till.charged("inv-2")).decline_code == "no_payment_method"


async def test_a_charge_that_meets_the_removal_of_its_card_begins_anew(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        card = await till.card()
        transaction = await till.charged()
        other = replace(transaction, id="another", charge_key="another:1", payment_method_id=None)

        async def begin() -> None:
            async with till.s.begin() as tx:
                await transactions.begin(
                    tx, other, transactions.ChargedCard(card.id, card.token, card.brand, card.last4)
                )

        async with till.s.begin() as removing:
            await payment_methods.remove(removing, "acc-1", card.id)
            beginning = asyncio.create_task(begin())
            await eventually(lambda: waits_for_a_lock(till.s))
        with pytest.raises(Retry, match="the card of another:1 was removed"):
            await beginning


async def test_no_account_has_more_cards_than_anybody_needs(stage: OpenStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payment_methods, "METHODS_MAX", 2)
    async with open_till(stage) as till:
        await till.card()
        await till.card()
        with pytest.raises(Invalid, match="remove one first"):
            await till.card()
