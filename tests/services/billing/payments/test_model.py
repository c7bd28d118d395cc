"""What of a charge can go back, by its state and by what went back already."""

from datetime import UTC, datetime

import pytest

from payonce.services.billing.payments.model import State, Transaction
from payonce.services.billing.payments.store.queries import ChargeSummary
from payonce.services.billing.wire import Action
from tests.services.billing.billing_stage import aed

AT = datetime(2026, 2, 1, 9, tzinfo=UTC)


@pytest.mark.parametrize("kind", [Transaction, ChargeSummary])
@pytest.mark.parametrize(
    ("state", "refunded", "refunding", "credited", "left", "free"),
    [
        (State.PENDING, "0.00", "0.00", "0.00", "0.00", "0.00"),
        (State.FAILED, "0.00", "0.00", "0.00", "0.00", "0.00"),
        (State.SUCCEEDED, "0.00", "0.00", "0.00", "29.00", "29.00"),
        (State.SUCCEEDED, "0.00", "9.00", "14.50", "20.00", "5.50"),
        (State.PARTIALLY_REFUNDED, "20.00", "0.00", "14.50", "9.00", "0.00"),
        (State.REFUNDED, "29.00", "0.00", "14.50", "0.00", "0.00"),
    ],
)
def test_what_was_not_captured_or_came_back_already_does_not_go_back(
    kind: type[Transaction], state: State, refunded: str, refunding: str, credited: str, left: str, free: str
) -> None:
    charge = kind(
        id="t",
        charge_key="k",
        account_id="a",
        subscription_id=None,
        invoice_id=None,
        generation=1,
        action=Action.PAYMENT,
        payment_method_id=None,
        amount=aed("29.00"),
        state=state,
        gateway_id=None,
        decline_code=None,
        hard=False,
        reason=None,
        refunded=aed(refunded),
        refunding=aed(refunding),
        metadata={},
        trace_id=None,
        created_at=AT,
        updated_at=AT,
        credited_minor=aed(credited).minor,
    )
    assert (charge.left, charge.free) == (aed(left), aed(free))
