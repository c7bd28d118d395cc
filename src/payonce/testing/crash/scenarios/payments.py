"""The handlers of the built-in scenarios: each pays in another way, and the next step is a separate message."""

from collections.abc import Callable
from typing import Final

import msgspec

from payonce.engine.messages.contract import Contract
from payonce.engine.messages.policy import Policy
from payonce.engine.messages.transaction import Tx
from payonce.engine.messages.work import Work, handles
from payonce.kit.outcomes import Refused, Retry
from payonce.testing.crash.scenarios import store
from payonce.testing.crash.scenarios.bank_scenario import policy
from payonce.testing.crash.scenarios.client import BankEffect, Banks, Broadcast, Charge, Purchase, Quote, Receipt, Wire
from payonce.testing.crash.scenarios.store import Payment


class Asked(msgspec.Struct, frozen=True):
    """The payload of a queue with a contract."""

    after: str | None


CHARGE: Final = policy("charge")
PURCHASE: Final = policy("purchase")
BROADCAST: Final = policy("broadcast")
WIRE: Final = policy("wire", max_attempts=2)
TRANSFER: Final = policy("transfer")
CREDIT: Final = policy("credit")
RETURN: Final = policy("return")
RECEIPT: Final = policy("receipt")
INSIST: Final = policy("insist", max_attempts=2)
CHECKED: Final = policy("checked", contract=Contract({"": Asked}))

ACCOUNT, MADE = "bank/account", "payments/made"


@handles(CHARGE)
async def charge(work: Work, banks: Banks) -> None:
    """Keyed: after a lost response the same request is sent again."""
    await _pay(work, RECEIPT, lambda paid: Charge(banks.home, paid.minor))


@handles(INSIST)
async def insist(work: Work, banks: Banks) -> None:
    """Waits until another payment is made; parked after two attempts, until an operator redrives it."""
    other = await store.payment(work.read, work.message.payload["after"])
    if other.state != "paid":
        raise Retry(f"{other.id} is {other.state}, not paid")
    await _pay(work, RECEIPT, lambda paid: Charge(banks.home, paid.minor))


@handles(CHECKED)
async def charge_checked(work: Work, banks: Banks) -> None:
    """Keyed; the contract admits only valid payloads."""
    assert isinstance(work.payload, Asked)
    await charge.function(work, banks)


@handles(PURCHASE)
async def purchase(work: Work, banks: Banks) -> None:
    """Findable: the bank is queried, and its carts are wiped before the request is repeated."""
    await _pay(work, RECEIPT, lambda paid: Purchase(banks.home, paid.minor))


@handles(WIRE)
async def wire(work: Work, banks: Banks) -> None:
    """Blind: sent once; after a lost response an operator decides."""
    await _pay(work, RECEIPT, lambda paid: Wire(banks.home, paid.minor))


@handles(TRANSFER)
async def transfer(work: Work, banks: Banks) -> None:
    """The first of two steps: money leaves one bank."""
    await _pay(work, CREDIT, lambda paid: Charge(banks.home, paid.minor))


@handles(BROADCAST)
async def broadcast(work: Work, banks: Banks) -> None:
    """Harmless and rebroadcast: a repeatable quote, then bytes that may be sent again."""
    paid = await store.payment(work.read, work.message.correlation_id)
    if paid.state not in ("new", "paying"):
        return
    await work.effect(Quote(banks.home, paid.minor), key=paid.id, intent=lambda tx: _begin(tx, paid))
    receipt = await work.effect(Broadcast(banks.home, paid.minor), key=paid.id)
    await _record(work, paid, receipt, RECEIPT)


@handles(CREDIT)
async def credit(work: Work, banks: Banks) -> None:
    """The second step: money reaches the other bank, or is refused there and returned in a third step."""
    paid = await store.payment(work.read, work.message.correlation_id)
    if paid.state not in ("paid", "crediting"):
        return
    try:
        await work.effect(
            Charge(banks.away, paid.minor),
            key=f"credit {paid.id}",
            intent=lambda tx: store.move(tx, paid.id, "crediting", "paid"),
        )
    except Refused as error:
        async with work.commit(rejected=error.reason) as tx:
            await store.move(tx, paid.id, "returning", "crediting")
            await tx.send(RETURN, {}, correlation_id=paid.id, key=f"return:{paid.id}")
        return
    async with work.commit() as tx:
        await store.move(tx, paid.id, "credited", "crediting")
        await tx.publish("transfers", {"end": "credited"}, correlation_id=paid.id)


@handles(RETURN)
async def return_money(work: Work, banks: Banks) -> None:
    """The compensation of the first step."""
    paid = await store.payment(work.read, work.message.correlation_id)
    if paid.state != "returning":
        return
    await work.effect(Charge(banks.home, paid.minor), key=f"return {paid.id}")
    async with work.commit() as tx:
        await store.move(tx, paid.id, "returned", "returning")
        await tx.post(store.posting("returned", paid, MADE, ACCOUNT))
        await tx.publish("transfers", {"end": "returned"}, correlation_id=paid.id)


@handles(RECEIPT)
async def send_receipt(work: Work) -> None:
    """Adds to a total that only the commit's fence keeps correct."""
    paid = await store.payment(work.read, work.message.correlation_id)
    async with work.commit() as tx:
        await store.tell(tx, paid.id)
        await store.count(tx, RECEIPT.queue)


async def _pay(work: Work, then: Policy, effect: Callable[[Payment], BankEffect]) -> None:
    paid = await store.payment(work.read, work.message.correlation_id)
    # A rejected payment may continue after an operator's answer; the recorded effect decides.
    if paid.state not in ("new", "paying", "rejected"):
        return
    try:
        receipt = await work.effect(effect(paid), key=paid.id, intent=lambda tx: _begin(tx, paid))
    except Refused as error:
        if paid.state != "rejected":
            async with work.commit(rejected=error.reason) as tx:
                await store.move(tx, paid.id, "rejected", "paying")
        return
    await _record(work, paid, receipt, then)


async def _begin(tx: Tx, paid: Payment) -> None:
    await store.move(tx, paid.id, "paying", "new")


async def _record(work: Work, paid: Payment, receipt: Receipt, then: Policy) -> None:
    """State, ledger and next message in one commit."""
    async with work.commit() as tx:
        await store.move(tx, paid.id, "paid", "paying", "rejected", number=receipt.number)
        await tx.post(store.posting("paid", paid, ACCOUNT, MADE))
        await tx.send(then, {}, correlation_id=paid.id, key=f"{then.queue}:{paid.id}")
