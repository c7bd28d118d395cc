"""One handler per step: order at the bank, then commit the result together with the next step."""

from payonce import NoPayload, Refused, Unprocessable, Work, handles
from payonce.examples.transfers import store
from payonce.examples.transfers.effects import PayIn, Refund, Withdraw
from payonce.examples.transfers.model import BadOrder, Order, State
from payonce.examples.transfers.policies import PAY_IN, REFUND, REQUESTS, WITHDRAW
from payonce.vendors.northbank.port import Northbank
from payonce.vendors.southbank.port import Southbank


@handles(REQUESTS)
async def accept_transfer(work: Work[Order]) -> None:
    """Accept an order. Repeating an id refers to the same transfer."""
    try:
        async with work.commit() as tx:
            await store.request(tx, work.payload)
    except BadOrder as error:
        raise Unprocessable(str(error)) from None


@handles(WITHDRAW)
async def withdraw(work: Work[NoPayload], northbank: Northbank) -> None:
    """Take the money from the customer's account at Northbank."""
    transfer = await store.transfer(work.read, work.message.correlation_id)
    if transfer.state not in (State.REQUESTED, State.WITHDRAWING):
        return
    try:
        receipt = await work.effect(
            Withdraw(northbank, transfer),
            key=f"{transfer.id}/withdraw",
            scope=transfer.scope,
            intent=lambda tx: store.move(tx, transfer.id, State.REQUESTED, State.WITHDRAWING),
        )
    except Refused as error:
        async with work.commit(rejected=error.reason) as tx:
            await store.move(tx, transfer.id, State.WITHDRAWING, State.REFUSED, reason=error.reason)
        return
    async with work.commit() as tx:
        await store.move(tx, transfer.id, State.WITHDRAWING, State.WITHDRAWN, withdrawal_id=receipt.id)
        await tx.post(transfer.withdrawn())
        await tx.send(
            PAY_IN, NoPayload(), key=f"pay-in:{transfer.id}", correlation_id=transfer.id, lane=transfer.tenant
        )


@handles(PAY_IN)
async def pay_in(work: Work[NoPayload], southbank: Southbank) -> None:
    """Pay it to the customer's account at Southbank; after a definite refusal it is refunded."""
    transfer = await store.transfer(work.read, work.message.correlation_id)
    if transfer.state not in (State.WITHDRAWN, State.PAYING):
        return
    try:
        receipt = await work.effect(
            PayIn(southbank, transfer),
            key=f"{transfer.id}/pay-in",
            scope=transfer.scope,
            intent=lambda tx: store.move(tx, transfer.id, State.WITHDRAWN, State.PAYING),
        )
    except Refused as error:
        async with work.commit(rejected=error.reason) as tx:
            await store.move(tx, transfer.id, State.PAYING, State.BOUNCED, reason=error.reason)
            await tx.send(
                REFUND, NoPayload(), key=f"refund:{transfer.id}", correlation_id=transfer.id, lane=transfer.tenant
            )
        return
    async with work.commit() as tx:
        await store.move(tx, transfer.id, State.PAYING, State.PAID, payment_id=receipt.payment_id)
        await tx.post(transfer.paid())


@handles(REFUND)
async def refund(work: Work[NoPayload], northbank: Northbank) -> None:
    """Refund it; if that is impossible, it is held for an operator."""
    transfer = await store.transfer(work.read, work.message.correlation_id)
    if transfer.state not in (State.BOUNCED, State.REFUNDING):
        return
    try:
        receipt = await work.effect(
            Refund(northbank, transfer),
            key=f"{transfer.id}/refund",
            scope=transfer.scope,
            intent=lambda tx: store.move(tx, transfer.id, State.BOUNCED, State.REFUNDING),
        )
    except Refused as error:
        async with work.commit(rejected=error.reason) as tx:
            await store.move(tx, transfer.id, State.REFUNDING, State.HELD, reason=error.reason)
        return
    async with work.commit() as tx:
        await store.move(tx, transfer.id, State.REFUNDING, State.REFUNDED, refund_id=receipt.id)
        await tx.post(transfer.refunded())
