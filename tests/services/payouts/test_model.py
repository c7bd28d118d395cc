"""The states of payouts and swaps are one table each, and the database knows the same ones."""

import re

import pytest

from payonce.services.payouts.model import (
    ENDED,
    REPLACED,
    SWAP_TRANSITIONS,
    TRANSITIONS,
    UNDER_WAY,
    Hold,
    State,
    SwapState,
    state_by,
)
from payonce.testing import OpenStage


def test_every_state_is_in_the_table_and_every_end_is_reached() -> None:
    assert set(TRANSITIONS) == set(State)
    reached = {after for following in TRANSITIONS.values() for after in following}
    assert reached >= set(State)
    assert {State.FINISHED, State.REJECTED, State.REFUNDED} == ENDED
    assert set(SWAP_TRANSITIONS) == set(SwapState)


def test_a_payout_under_way_can_always_be_kept_for_a_person() -> None:
    for state in UNDER_WAY:
        assert {State.HELD, State.REVIEW} <= TRANSITIONS[state], state


def test_no_swap_that_is_being_paid_can_be_replaced_before_the_money_is_back() -> None:
    """Back, or proven never to have left."""
    assert SWAP_TRANSITIONS[SwapState.PAYING] & REPLACED == {SwapState.RETURNED}
    assert SWAP_TRANSITIONS[SwapState.PAID_IN] & REPLACED == {SwapState.RETURNED}


@pytest.mark.parametrize(
    ("swaps", "state"),
    [
        ("creating created", State.SWAP_CREATING),
        ("created created", State.SWAPPED),
        ("created paying", State.PAYING),
        ("created paid_in", State.PAYING),
        ("paying finished", State.PAYING),
        ("paid_in finished", State.PAID_IN),
        ("finished finished", State.FINISHED),
        ("finished", State.FINISHED),
    ],
)
def test_a_payout_stands_where_the_slowest_of_its_swaps_stands(swaps: str, state: State) -> None:
    assert state_by(SwapState(each) for each in swaps.split()) is state


@pytest.mark.parametrize(("table", "names"), [("payouts", State), ("swaps", SwapState)])
async def test_the_database_knows_the_same_states(
    stage: OpenStage, table: str, names: type[State] | type[SwapState]
) -> None:
    async with stage() as s:
        check = await s.owner.fetchval(
            """
            select pg_get_constraintdef(oid) from pg_constraint
            where conrelid = ('payouts.' || $1)::regclass and conname = $1 || '_state_check'
            """,
            table,
        )
        assert set(re.findall(r"'(\w+)'::text", check)) == {each.value for each in names}


def test_holds_have_names_that_do_not_change_silently() -> None:
    assert len({hold.value for hold in Hold}) == len(Hold)
