"""Requests of customers and operators as messages, since the explorer crashes handlers.

A rejected request changes nothing, like the 409 or 422 of the HTTP route.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, cast

from payonce.engine.controls import submit
from payonce.engine.messages.policy import Exponential, Policy
from payonce.engine.messages.ports import Admin
from payonce.engine.messages.transaction import Tx
from payonce.engine.messages.work import Work, handles
from payonce.kit.money import well_known
from payonce.kit.outcomes import Invalid
from payonce.services.billing.subscriptions.decisions.credit import CreditChange, CreditVerdict, credit_action
from payonce.services.billing.subscriptions.domain.refusals import Conflict
from payonce.services.billing.subscriptions.handlers import plan_changes
from payonce.services.billing.subscriptions.handlers.plan_changes import ChangeTiming
from payonce.services.billing.subscriptions.store import credit

PERSON: Final = Policy("billing-crash:person", max_attempts=6, backoff=Exponential(10.0, 2.0, 300.0, 5.0))
PAY_OUT: Final = "pay_out"
EXPIRE: Final = "expire"
CHANGE: Final = "change"
CANCEL: Final = "cancel"


@handles(PERSON, PAY_OUT)
async def pay_out(work: Work) -> None:
    await _carry_out(work, lambda tx, asked: _decide(tx, CreditVerdict.PAY_OUT, asked["account_id"], asked["minor"]))


@handles(PERSON, EXPIRE)
async def expire(work: Work) -> None:
    """The rest of the credit."""
    await _carry_out(work, lambda tx, asked: _decide(tx, CreditVerdict.EXPIRE, asked["account_id"], None))


@handles(PERSON, CHANGE)
async def change(work: Work) -> None:
    """Changes the plan now."""
    await _carry_out(
        work,
        lambda tx, asked: plan_changes.request_plan(
            tx, None, asked["subscription_id"], asked["plan_id"], ChangeTiming.NOW
        ),
    )


@handles(PERSON, CANCEL)
async def cancel(work: Work) -> None:
    """At the end of the period."""
    await _carry_out(
        work, lambda tx, asked: plan_changes.cancel(tx, None, asked["subscription_id"], ChangeTiming.PERIOD_END)
    )


CARRIED_OUT: Final = (pay_out, expire, change, cancel)


async def _carry_out(work: Work, act: Callable[[Tx, Any], Awaitable[object]]) -> None:
    async with work.commit() as tx:
        with suppress(Conflict, Invalid):
            async with tx.savepoint():
                await act(tx, work.message.payload)


async def _decide(tx: Tx, verdict: CreditVerdict, account_id: str, minor: int | None) -> None:
    asset = well_known("AED")
    has = await credit.locked_or_created(tx, account_id, asset)
    asked = CreditChange(
        account_id=account_id,
        currency=asset.code,
        exponent=asset.exponent,
        seen=has.revision,
        verdict=verdict,
        amount_minor=has.amount.minor if minor is None else minor,
        note="they wrote to us",
    )
    # The action does not read the queues.
    await submit(tx, credit_action(cast(Admin, None)), asked, "an operator", asked.note)
