"""With a safeguard of hostpay taken out, named tests fail. A check that cannot fail is none."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import asyncpg
import msgspec
import pytest

from payonce.engine.messages.model import Lease
from payonce.services.payouts.decisions import payouts
from payonce.services.payouts.handlers import hostpay, payment_follow, prior_attempts
from payonce.services.payouts.handlers.wallet import HostWallet
from payonce.services.payouts.store import refunds, wallet_limits
from payonce.services.payouts.store import wallet as wallet_store
from payonce.testing import OpenStage
from payonce.vendors.evm import client
from tests.ablations import Ablations, cases, given, missed, patched
from tests.conformance.wire import without
from tests.services.payouts import (
    test_concurrent_payouts,
    test_hostpay,
    test_hostpay_chain,
    test_hostpay_clearances,
    test_hostpay_in_doubt,
    test_hostpay_limits,
    test_hostpay_nonces,
    test_hostpay_writers,
    test_refunds,
)


async def any_lease(host: HostWallet) -> Lease:
    return Lease(f"wallet:{host.wallet.address}", "nobody", 1, 5.0)


async def no_fence(host: HostWallet, tx: object, lease: object) -> None:
    return None


@contextmanager
def no_lease() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HostWallet, "lease", any_lease)
        patch.setattr(HostWallet, "fence", no_fence)
        yield


async def no_row(*_: Any) -> None:
    return None


sign_payment = wallet_store.sign_payment


async def sign_behind_all_pending(tx: Any, wallet: Any, request: Any) -> Any:
    """Behind everything that waits, whoever signed it."""
    return await sign_payment(tx, wallet, msgspec.structs.replace(request, next_nonce=request.pending_nonce))


@contextmanager
def no_look_at_nonces() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hostpay, "_check_nonce", no_row)
        patch.setattr(wallet_store, "sign_payment", sign_behind_all_pending)
        yield


async def always_waits(*_: Any) -> bool:
    return True


async def never_exceeded(*_: Any) -> str:
    return ""


async def nobody_involved(*_: Any) -> str:
    return wallet_limits.REQUESTER


async def never_counted_before(*_: Any) -> str | None:
    return None


async def earlier_round_direct(stage: OpenStage) -> None:
    with pytest.MonkeyPatch.context() as patch:
        await test_hostpay_chain.test_an_earlier_round_that_was_paid_after_all_keeps_the_next_from_being_paid(
            stage, True, patch
        )


read_receipt = client._receipt


def final_at_once(*arguments: Any) -> Any:
    return msgspec.structs.replace(read_receipt(*arguments), final=True)


ABLATIONS: Ablations = {
    "the lease": (
        no_lease,
        [
            test_hostpay_writers.test_while_one_process_writes_another_signs_nothing,
            test_hostpay_writers.test_a_dead_writer_is_replaced_when_its_lease_has_ended,
        ],
    ),
    "the fence": (
        patched(HostWallet, "fence", no_fence),
        [test_hostpay_writers.test_a_process_that_lost_the_wallet_without_knowing_signs_nothing],
    ),
    "nonces of our own counting": (
        lambda: without(
            r"where not exists \(select from payouts.wallet_payments q[^)]*\)|where taken\.nonce is null",
            "",
            within="c.nonce",
        ),
        [test_hostpay_writers.test_a_nonce_that_the_chain_forgot_is_not_given_to_another_payment],
    ),
    "the look whose nonce waits": (
        no_look_at_nonces,
        [test_hostpay_nonces.test_a_nonce_that_somebody_else_waits_with_is_neither_taken_nor_passed_over],
    ),
    "the funds behind the wallet's lock": (
        patched(wallet_store, "_check_funds", lambda *_: None),
        [
            test_concurrent_payouts.test_no_more_payments_are_signed_than_the_wallet_can_pay,
        ],
    ),
    "the row before the send": (
        lambda: without(
            r"from payouts.swaps where id = \$2",
            "from payouts.swaps where $2::text is null",
            within="split_payout_hostpay",
        ),
        [test_hostpay_writers.test_row_nonce_and_bytes_are_on_record_before_the_first_byte_leaves],
    ),
    "the look whether it waits": (
        patched(hostpay, "expects_deposit", always_waits),
        [
            test_hostpay.test_an_exchange_that_expired_unpaid_is_replaced_by_another,
            test_hostpay.test_an_exchange_that_somebody_else_paid_goes_before_a_person,
            test_hostpay.test_an_exchange_that_verifies_before_it_was_paid_is_not_paid,
        ],
    ),
    "the second look at whom a person has": (
        patched(hostpay, "_lock_payouts", no_row),
        [
            given(
                test_hostpay_in_doubt.test_what_a_person_stops_while_the_exchange_or_the_chain_is_asked_is_not_paid,
                "exchange",
            )
        ],
    ),
    "the time that a deposit needs": (
        patched(hostpay, "PAID_IN_WITHIN_S", 0.0),
        [given(test_hostpay_in_doubt.test_an_exchange_about_to_expire_is_replaced_and_not_paid, 5.0, 2)],
    ),
    "the record stands": (
        patched(hostpay, "_differs", lambda *_: None),
        [given(test_hostpay.test_a_message_that_differs_from_the_record_holds_the_payout, {"from_currency": "btc"})],
    ),
    "the limits": (
        patched(wallet_limits, "exceeded", never_exceeded),
        [test_hostpay_limits.test_a_payment_above_the_limit_waits_for_people_and_is_paid_once_they_agree],
    ),
    "the limits count the whole": (
        patched(wallet_limits, "_WHOLE", "select amount_minor as minor from payouts.swaps where id = {swap}"),
        [test_hostpay_clearances.test_a_payout_above_the_limit_of_a_payment_is_asked_for_whatever_it_is_split_into],
    ),
    "a clearance is for an address": (
        lambda: without(
            r"payouts.address_key\(c.address\) = payouts.address_key\(\$4\)",
            "($4::text is not null)",
            within="wallet_clearances",
        ),
        [given(test_hostpay_clearances.test_a_clearance_counts_for_its_address_and_memo_alone, "wallet_address")],
    ),
    "a clearance is for a memo": (
        lambda: without(r"c.extra_id is not distinct from \$5", "($5::text is null or true)", within="c.address"),
        [given(test_hostpay_clearances.test_a_clearance_counts_for_its_address_and_memo_alone, "extra_id")],
    ),
    "another address ends what was agreed to": (
        patched(payouts, "void_clearances", no_row),
        [test_hostpay_clearances.test_what_was_agreed_to_before_another_address_is_over_even_when_the_first_comes_back],
    ),
    "one question of a payment": (
        patched(wallet_limits, "withdraw", no_row),
        [
            test_hostpay_clearances.test_an_approval_that_waits_is_not_granted_for_another_address,
            test_hostpay_clearances.test_of_one_payment_one_question_is_open_and_a_denial_is_the_end_of_it,
        ],
    ),
    "who is involved does not agree": (
        patched(wallet_limits, "_requester", nobody_involved),
        [
            test_hostpay_clearances.test_whoever_gave_the_address_does_not_agree_to_its_payment,
            test_hostpay_clearances.test_whoever_let_it_go_on_does_not_agree_to_its_payment,
        ],
    ),
    "a refund is the deposit": (
        patched(refunds, "tolerated_shortfall", lambda swap: swap.amount),
        [given(test_refunds.test_a_refund_that_is_not_the_deposit_goes_before_a_person_and_is_not_paid_again, "5")],
    ),
    "a transaction is counted once": (
        patched(refunds, "_insert_refund", never_counted_before),
        [test_refunds.test_one_transaction_is_not_the_refund_of_two_deposits],
    ),
    "a return comes after the payment, and from others": (
        patched(refunds, "refund_objection", never_exceeded),
        [
            test_refunds.test_what_reached_the_wallet_before_the_payment_is_not_its_return,
            test_refunds.test_what_a_wallet_of_ours_sent_is_not_the_return_of_a_deposit,
        ],
    ),
    "the exchange's word before a deposit is back": (
        patched(payment_follow, "_exchange_objection", never_exceeded),
        [test_refunds.test_what_the_exchange_still_works_on_is_not_back_whatever_arrives],
    ),
    "the second person": (
        patched(payouts, "_BY_TWO", {}),
        [test_refunds.test_that_a_deposit_came_back_needs_a_second_person],
    ),
    "many looks before a payment is lost": (
        patched(payment_follow, "LOST_LOOKS", 1),
        [given(test_hostpay_chain.test_a_receipt_that_a_node_does_not_show_for_a_while_is_waited_for, 1, True)],
    ),
    "the time between these looks": (
        patched(payment_follow, "LOST_LOOK_S", 0.0),
        [given(test_hostpay_chain.test_a_receipt_that_a_node_does_not_show_for_a_while_is_waited_for, 2, True)],
    ),
    "the exchange's word before a payment is lost": (
        patched(payment_follow, "_funded_exchange", no_row),
        [test_hostpay_chain.test_what_the_exchange_has_seen_is_not_lost_whatever_the_node_shows],
    ),
    "the look at earlier rounds": (
        patched(prior_attempts, "find_prior_payment", never_exceeded),
        [earlier_round_direct],
    ),
    "what has ended stays": (
        lambda: without(r"and tx_status in \('signed', 'sent'\)", "", within="split_payout_hostpay"),
        [test_hostpay_writers.test_a_late_run_does_not_take_a_final_payment_back_to_sent],
    ),
    "finality": (
        patched(client, "_receipt", final_at_once),
        [given(test_hostpay_chain.test_a_reorganisation_before_finality_costs_nothing_but_time, True)],
    ),
}


@pytest.mark.parametrize(("name", "number"), cases(ABLATIONS))
async def test_without_it_the_named_test_fails(stage: OpenStage, name: str, number: int) -> None:
    await missed(ABLATIONS, name, number, stage, asyncpg.UniqueViolationError)
