"""With a safeguard of payouts taken out, named tests fail. A check that cannot fail is none."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal

import pytest

from payonce.engine.messages.transaction import Tx
from payonce.engine.messages.work import Work
from payonce.kit.money import Amount, Rounding
from payonce.services.payouts import schedules
from payonce.services.payouts.api import webhook
from payonce.services.payouts.decisions import payouts as decisions
from payonce.services.payouts.domain import pricing
from payonce.services.payouts.handlers import estimator, next_messages, orchestrator, swapper
from payonce.services.payouts.model import Payout, Swap, SwapState, swap_from
from payonce.services.payouts.store import minimums, swaps
from payonce.testing import OpenStage, Stage
from payonce.vendors.changenow.port import Code
from tests.ablations import Ablations, cases, given, missed, patched
from tests.conformance.wire import without
from tests.services.payouts import (
    test_currencies,
    test_decisions,
    test_direct_minimum,
    test_flow,
    test_guards,
    test_intake,
    test_intake_in_one_way,
    test_keeping,
    test_refusals,
)
from tests.services.payouts.payouts_stage import BTC_CLIENT


def fee_rounded(price: Amount, percent: Decimal) -> tuple[Amount, Amount]:
    """What reads the same, and rounds the fee instead of the rest."""
    fee = price.times(percent / 100, Rounding.HALF_EVEN)
    return fee, price - fee


async def post_nothing(tx: Tx, posting: object) -> None:
    return None


async def tell_what_is_created(tx: Tx, payouts: list[Payout], *_: object) -> None:
    """Hostpay hears of each exchange as it comes, whatever becomes of the others."""
    for payout in payouts:
        for swap in await swaps.active_swaps(tx, payout.id):
            if swap.cn_api_id is not None and swap.triggered_at is None:
                await next_messages.send_hostpay(tx, payout, swap)


async def advance_by_an_earlier_look(tx: Tx, swap: Swap, after: SwapState) -> Swap:
    """Reads how the other parts stand before it has the payouts."""
    rows = await tx.fetch(
        """
        select h.payout_id, other.state from payouts.shares mine
        join payouts.shares h on h.payout_id = mine.payout_id and h.active
        join payouts.swaps other on other.id = h.swap_id where mine.swap_id = $1 and other.id <> $1
        """,
        swap.id,
    )
    carried = await swaps.payouts_of(tx, swap.id)
    moved = await swaps._change(tx, swap, after)
    for payout in carried:
        others = [SwapState(row["state"]) for row in rows if row["payout_id"] == payout.id]
        await swaps.follow(tx, payout, [after, *others])
    return swap_from(moved)


def always_other(_: object) -> Code:
    return Code.OTHER


def tries_of_any_kind(work: Work, *_: object) -> int:
    return work.message.attempts


async def never(*_: object) -> bool:
    return False


async def always(*_: object) -> bool:
    return True


async def readdressed_meanwhile(stage: OpenStage) -> None:
    with pytest.MonkeyPatch.context() as patch:
        await test_decisions.test_a_run_that_had_read_the_old_address_orders_nothing_for_it(
            stage, patch, "btc", BTC_CLIENT, test_decisions.BTC_ELSEWHERE
        )


async def half_to_even(_: OpenStage) -> None:
    test_intake.test_half_goes_to_the_even_side("0.000005", "50", "0.000003", "0.000002")
    test_intake.test_half_goes_to_the_even_side("0.000015", "50", "0.000007", "0.000008")


async def said_twice(_: OpenStage) -> None:
    test_intake_in_one_way.test_a_name_that_comes_twice_is_400('"user_id": 1')


ABLATIONS: Ablations = {
    "the rounding of the rest": (patched(test_intake, "fee_and_rest", fee_rounded), [half_to_even]),
    "the price of gas": (
        patched(minimums, "GAS_MULTIPLE", 0),
        [test_direct_minimum.test_what_is_not_worth_its_gas_waits_and_leaves_with_the_rest_of_its_client],
    ),
    "each name once": (patched(webhook, "_check_duplicates", lambda *_: None), [said_twice]),
    "the postings": (patched(Tx, "post", post_nothing), [test_flow.test_the_books_close_at_every_step]),
    "the state of a payout": (
        lambda: without(r"and state = \$2 returning", "and $2::text <> '' returning", within="payouts.payouts"),
        [test_guards.test_a_payout_that_has_moved_on_is_not_moved_by_a_stale_read],
    ),
    "the state of a swap": (
        lambda: without(r"and s\.state = \$2", "and $2::text is not null", within="payouts.swaps"),
        [test_guards.test_a_swap_that_has_moved_on_is_not_moved_by_a_stale_read],
    ),
    "the state of a swap that hostpay is told of": (
        lambda: without(r"and state = \$2 and active", "and $2::text <> ''", within="triggered_at"),
        [test_guards.test_hostpay_is_not_told_of_a_swap_that_has_moved_on],
    ),
    "the look at the other parts": (
        lambda: without(r"and other.id is distinct from s.id", "and false", within="payouts.parts"),
        [test_refusals.test_what_is_too_large_for_one_swap_is_split],
    ),
    "the look at the other parts behind the lock": (
        patched(swaps, "advance", advance_by_an_earlier_look),
        [test_guards.test_of_two_parts_that_move_at_once_the_later_sees_the_earlier],
    ),
    "waiting for every part": (
        patched(orchestrator, "trigger_hostpay", tell_what_is_created),
        [test_refusals.test_hostpay_hears_of_no_part_before_all_have_an_exchange],
    ),
    "the look at the list before the price": (
        patched(estimator, "_is_held_or_requeued", never),
        [test_currencies.test_a_payout_without_its_memo_is_held_when_it_came_before_the_list],
    ),
    "the count of refusals alone": (
        patched(estimator, "number_of", tries_of_any_kind),
        [test_refusals.test_tries_that_an_outage_cost_are_none_of_those],
    ),
    "the exchange's word": (
        patched(swapper, "code_of", always_other),
        [
            test_refusals.test_what_is_too_small_for_a_swap_accumulates,
            test_refusals.test_what_is_too_large_for_one_swap_is_split,
        ],
    ),
    "the question whether it has a message": (
        lambda: without(
            r"not exists \(\s*select from payonce.live_messages", "(select true from payonce.live_messages"
        ),
        [test_keeping.test_a_payout_that_has_a_message_is_left_alone],
    ),
    "the look at payments whose payouts a person has": (
        patched(schedules, "_follow_paid_swaps", never),
        [
            given(
                test_keeping.test_a_payment_is_followed_to_its_end_although_a_person_has_its_payout,
                test_keeping.stopped_on_its_way,
            )
        ],
    ),
    "the question whether it is ordered": (
        patched(decisions, "_is_unordered", always),
        [given(test_decisions.test_what_may_be_ordered_keeps_its_address, "unknown")],
    ),
    "the second look at the swap": (patched(swapper, "REPLACED", frozenset()), [readdressed_meanwhile]),
}

IN_THE_STORE = {
    "unique ids": (
        "alter table payouts.payouts drop constraint payouts_unique_id_key cascade",
        test_guards.test_two_payments_never_have_one_unique_id,
    ),
    "one active swap": (
        "drop index payouts.one_active_swap_per_part",
        test_guards.test_a_part_never_has_two_active_swaps,
    ),
    "the guard of replacements": (
        "alter table payouts.swaps drop constraint replaced_only_before_hostpay",
        test_guards.test_what_hostpay_was_told_of_is_never_replaced,
    ),
    "fee and rest": (
        "alter table payouts.payouts drop constraint fee_and_rest_are_the_price",
        test_guards.test_fee_and_rest_that_are_not_the_price_are_refused_by_the_store,
    ),
}


def weakened(stage: OpenStage, ddl: str) -> OpenStage:
    @asynccontextmanager
    async def opened() -> AsyncIterator[Stage]:
        async with stage() as s:
            await s.owner.execute(ddl)
            yield s

    return opened


@pytest.mark.parametrize(("name", "number"), cases(ABLATIONS))
async def test_without_it_the_named_test_fails(stage: OpenStage, name: str, number: int) -> None:
    await missed(ABLATIONS, name, number, stage)


@pytest.mark.parametrize("name", IN_THE_STORE)
async def test_without_what_the_store_keeps_the_named_test_fails(stage: OpenStage, name: str) -> None:
    ddl, check = IN_THE_STORE[name]
    ablations: Ablations = {name: (patched(pricing, "__doc__", ""), [check])}
    await missed(ablations, name, 0, weakened(stage, ddl))
