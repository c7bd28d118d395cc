"""With a safeguard of the transfers taken out, named tests fail. A check that cannot fail is none."""

from typing import Any
from uuid import uuid4

import msgspec
import pytest

from payonce.engine.effects import Rebroadcast
from payonce.engine.messages.transaction import Tx
from payonce.examples.transfers.effects import PayIn
from payonce.testing import OpenStage
from payonce.testing.faults import Fault
from payonce.vendors.northbank.client import NorthbankClient
from payonce.vendors.northbank.port import TransferOrder
from tests.ablations import Ablations, cases, given, missed, patched
from tests.conformance.wire import without
from tests.examples import test_transfers


async def fence_that_does_nothing(effect: PayIn, request: Any) -> None:
    return None


ordered = NorthbankClient.transfer


async def transfer_under_a_new_key(client: NorthbankClient, order: TransferOrder) -> Any:
    """What a client does that makes up a key for every request."""
    fresh = msgspec.structs.replace(order, key=f"{order.key.rpartition(':')[0]}:{uuid4().int}")
    return await ordered(client, fresh)


pay_in_begins = PayIn.__init__


def sent_again_in_doubt(effect: PayIn, *arguments: Any) -> None:
    pay_in_begins(effect, *arguments)
    effect.safety = Rebroadcast()


async def post_nothing(tx: Tx, posting: Any) -> None:
    return None


ABLATIONS: Ablations = {
    "the bank's fence": (
        patched(PayIn, "_void", fence_that_does_nothing),
        [test_transfers.test_a_late_payment_under_a_voided_reference_never_lands],
    ),
    "the one key": (
        patched(NorthbankClient, "transfer", transfer_under_a_new_key),
        [
            given(test_transfers.test_every_fault_in_the_withdrawal_is_survived, Fault.ANSWER_LOST),
            given(test_transfers.test_every_fault_in_the_refund_is_survived, Fault.LATE),
        ],
    ),
    "asking before paying again": (
        patched(PayIn, "__init__", sent_again_in_doubt),
        [given(test_transfers.test_every_fault_in_the_payment_is_survived, Fault.TIMEOUT_AFTER)],
    ),
    "the postings": (
        patched(Tx, "post", post_nothing),
        [test_transfers.test_a_transfer_is_withdrawn_and_paid_in],
    ),
    "the compare-and-set": (
        lambda: without(r"and state = \$2 returning", "and $2::text <> '' returning", within="transfers.transfers"),
        [test_transfers.test_a_transfer_that_has_moved_on_is_not_moved_by_a_stale_read],
    ),
}


@pytest.mark.parametrize(("name", "number"), cases(ABLATIONS))
async def test_without_it_the_named_test_fails(stage: OpenStage, name: str, number: int) -> None:
    await missed(ABLATIONS, name, number, stage)
