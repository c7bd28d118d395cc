"""What a person decides about a payout: let it go on, elsewhere if need be, keep it, reject it, or give the money back;
and about a deposit that its exchange came to nothing with: that it came back, or that it is lost.

One action, carried out at once or, above the thresholds of its assets, when a second person has agreed.
"""

import re
from enum import StrEnum
from typing import Any, Final

import msgspec

from payonce.engine.controls import Action, Assessment, Link, requester_of
from payonce.engine.messages.ports import Admin
from payonce.engine.messages.transaction import Tx
from payonce.kit.outcomes import Invalid, Retry, Stale
from payonce.services.payouts import ledger
from payonce.services.payouts.domain.addresses import MEMO_RULE, in_one_spelling, is_memo, key_of, wrong_with
from payonce.services.payouts.handlers import next_messages
from payonce.services.payouts.model import BY_EXTERNAL, UNDER_WAY, Hold, Payout, State, Swap, SwapState
from payonce.services.payouts.store import payouts
from payonce.services.payouts.store import swaps as swap_store
from payonce.services.payouts.store.wallet_limits import void_clearances

ACTION: Final = "decide payout"
_KEPT: Final = frozenset({State.HELD, State.REVIEW})
_MAY_END: Final = _KEPT | {State.ACCUMULATING}
_HASH: Final = re.compile(r"0x[0-9a-f]{64}")


class Verdict(StrEnum):
    RELEASE = "release"
    """Goes on where it stopped."""
    READDRESS = "readdress"
    """Goes on with another address."""
    HOLD = "hold"
    REJECT = "reject"
    """Is not paid, and not given back."""
    REFUND = "refund"
    """Everything is undone, the fee included: it is given back, or was never more than a repetition."""
    RETURNED = "returned"
    """A transaction brought the deposit back, and two people say so; hostpay asks the exchange and looks on the chain
    whether it did."""
    WRITE_OFF = "write_off"
    """The deposit is lost, and two people say so; hostpay looks whether the exchange has given it up too."""
    UNPAID = "unpaid"
    """Your own GCHostPay has not paid the exchange and will not, and two people say so; its task is deleted, and the
    exchange is asked whether it has seen money."""


_BY_TWO: Final = {
    Verdict.RETURNED: "a deposit is said to be back",
    Verdict.WRITE_OFF: "a deposit is written off",
    Verdict.UNPAID: "an exchange that was handed over is said to be unpaid",
}
"""Whatever the amount: a payout without a deposit can be paid once more."""


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    payout_id: str
    seen: int
    """The revision of what the person looked at."""
    verdict: Verdict
    note: str
    address: str | None = None
    extra_id: str | None = None
    """Of the new address; an empty one says that it needs none, as at intake."""
    transaction: str | None = None
    """By which the deposit came back."""
    swap_id: str | None = None
    """Whose deposit, if the payout has several at the exchange."""


def decision_action(_: Admin) -> Action[Decision]:
    return Action(ACTION, Decision, _assess, _execute, _page)


def _page(payout_id: str) -> Link:
    return Link("The payout", f"/payouts/{payout_id}")


async def _assess(tx: Tx, asked: Decision) -> Assessment:
    payout = await _existing_payout(tx, asked.payout_id)
    amounts = [] if asked.verdict is Verdict.HOLD else [payout.adjusted]
    if amounts and payout.value is not None:
        amounts.append(payout.value)
    where = f" to {asked.address}" if asked.verdict is Verdict.READDRESS else ""
    text = f"{asked.verdict} payout {payout.id}{where}, which is {payout.state} ({payout.adjusted})"
    if asked.verdict is Verdict.RETURNED:
        text += f", by transaction {asked.transaction}"
    return Assessment(payout.id, text, amounts, because=_BY_TWO.get(asked.verdict, ""))


async def _execute(tx: Tx, asked: Decision, by: str) -> dict[str, Any]:
    await _existing_payout(tx, asked.payout_id)
    payout = await payouts.locked(tx, asked.payout_id)
    if payout.revision != asked.seen:
        raise Stale(f"payout {payout.id} has changed since you looked at it; look again")
    match asked.verdict:
        case Verdict.RELEASE:
            after = await _release(tx, payout, by)
        case Verdict.READDRESS:
            after = await _readdress(tx, payout, asked, by)
        case Verdict.HOLD:
            _check_state(payout, UNDER_WAY, asked.verdict)
            after = await payouts.hold_payout(tx, payout, Hold.PERSON, f"{by}: {asked.note}")
        case Verdict.REJECT:
            after = await _end(tx, payout, State.REJECTED, asked)
        case Verdict.REFUND:
            after = await _end(tx, payout, State.REFUNDED, asked)
        case Verdict.RETURNED | Verdict.WRITE_OFF:
            after = await _end_deposit(tx, payout, asked, by)
        case Verdict.UNPAID:
            after = await _end_unpaid(tx, payout, asked, by)
    return {"payout": after.id, "state": after.state.value}


async def _release(tx: Tx, payout: Payout, by: str) -> Payout:
    _check_state(payout, _KEPT, Verdict.RELEASE)
    assert payout.held_from is not None
    await tx.execute("update payouts.payouts set released_by = $2 where id = $1", payout.id, requester_of(by))
    released = await payouts.move(tx, payout, payout.held_from)
    await next_messages.resume(tx, released)
    return released


async def _readdress(tx: Tx, payout: Payout, asked: Decision, by: str) -> Payout:
    """Only while nothing of it is ordered: what is ordered has the address it has."""
    _check_state(payout, _KEPT, asked.verdict)
    address = asked.address or ""
    if (wrong := wrong_with(payout.payout_network, address)) is not None:
        raise Invalid(f"{address[:80]!r} {wrong}")
    if await _is_host_wallet(tx, address):
        raise Invalid(f"{address!r} is the wallet that pays, which cannot pay itself; give the client's own address")
    address = in_one_spelling(payout.payout_network, address)
    await _check_memo(tx, payout, asked.extra_id)
    for swap in await swap_store.active_swaps(tx, payout.id):
        if not await _is_unordered(tx, swap):
            raise Invalid(
                f"payout {payout.id} has a swap to the address it has; release it, or wait until that is over"
            )
        await swap_store.abandon(tx, swap, "the payout goes to another address")
    await tx.execute(
        """
        update payouts.payouts set wallet_address = $2, extra_id = $3, says_extra_id = true, addressed_by = $4
        where id = $1
        """,
        payout.id,
        address,
        asked.extra_id or None,
        requester_of(by),
    )
    await tx.execute(
        """
        update payouts.split_payout_request set client_wallet_address = $2, updated_at = payonce.due_now()
        where unique_id = $1
        """,
        payout.unique_id,
        address,
    )
    await void_clearances(tx, payout)
    return await _release(tx, await payouts.locked(tx, payout.id), by)


async def _is_host_wallet(tx: Tx, address: str) -> bool:
    """As far as this database tells: a wallet of ours that has paid, or where the exchange sends the refunds of the
    payout priced last. Before any price, the estimator compares."""
    found: bool = await tx.fetchval(
        """
        select exists (select from payouts.wallets where payouts.address_key(address) = $1)
            or coalesce((
                select payouts.address_key(request.refund_address) = $1
                from payouts.payouts join payouts.split_payout_request request using (unique_id)
                order by payouts.created_at desc, payouts.id desc limit 1
            ), false)
        """,
        key_of(address),
    )
    return found


async def _is_unordered(tx: Tx, swap: Swap) -> bool:
    """Whether the exchange has never been asked for it, and it is for this payout alone. An order is on record before
    it leaves, in a transaction that waits for the payout's lock, which is ours."""
    if swap.state is not SwapState.CREATING or len(await swap_store.shares_of(tx, swap.id)) > 1:
        return False
    ordered: bool = await tx.fetchval(
        "select exists (select from payonce.effects where kind = 'changenow.create' and key = $1)", swap.id
    )
    return not ordered


async def _check_memo(tx: Tx, payout: Payout, given: str | None) -> None:
    """What is sent to an exchange's address without its memo is lost to the client. Without a list of currencies, a
    payout that has a memo tells that its coin knows them."""
    if given and not is_memo(given):
        raise Invalid(f"extra_id is {given[:40]!r}; it {MEMO_RULE}")
    has_memos = await tx.fetchval(
        "select has_extra_id from payouts.currencies where ticker = $1 and network = $2",
        payout.payout_currency,
        payout.payout_network,
    )
    coin = f"{payout.payout_currency} on {payout.payout_network}"
    if given is None and (has_memos or payout.extra_id is not None):
        raise Invalid(f"extra_id is missing: an address of {coin} may need a memo; if this one needs none, say so")
    if given and has_memos is False:
        raise Invalid(f"extra_id is {given[:40]!r}, and {coin} has no memos; leave it out")


async def _end_deposit(tx: Tx, payout: Payout, asked: Decision, by: str) -> Payout:
    """Hostpay has the wallet and asks the exchange: it does it, or says why not. Afterwards the payout waits for what a
    person decides about it, as one that was never paid."""
    _check_state(payout, _KEPT, asked.verdict)
    assert payout.hold is not None
    swap = await _deposited(tx, payout, asked)
    if asked.verdict is Verdict.RETURNED and swap.paid_by == BY_EXTERNAL:
        raise Invalid(
            f"swap {swap.id} was paid by your own GCHostPay, whose wallet is not watched here; write the deposit off, "
            "and then let the payout go on or give the money back"
        )
    lead = await payouts.payout_by_unique_id(tx, swap.unique_id)
    if asked.verdict is Verdict.WRITE_OFF:
        reason = f"{by}: the deposit of {swap.id} is lost; being looked at once more"
        await next_messages.send_written_off(tx, lead, swap, by)
    else:
        transaction = (asked.transaction or "").strip().lower()
        if _HASH.fullmatch(transaction) is None:
            raise Invalid(f"{transaction[:80]!r} is no transaction: give its hash, 0x and 64 hexadecimal digits")
        if owner := await tx.fetchval("select swap_id from payouts.refunds where hash = $1", transaction):
            raise Invalid(f"transaction {transaction} was counted for swap {owner} already; give another one")
        reason = f"{by}: the deposit of {swap.id} came back by {transaction}; being looked for on the chain"
        await next_messages.send_returned(tx, lead, swap, transaction)
    return await payouts.hold_payout(tx, payout, payout.hold, reason, as_state=payout.state)


async def _end_unpaid(tx: Tx, payout: Payout, asked: Decision, by: str) -> Payout:
    """The exchange is asked; if it has seen no money either, the payout waits as one that was never paid."""
    _check_state(payout, _KEPT, asked.verdict)
    assert payout.hold is not None
    handed = [
        swap
        for swap in await swap_store.active_swaps(tx, payout.id)
        if swap.handed_over_at is not None and swap.state is SwapState.CREATED and asked.swap_id in (None, swap.id)
    ]
    if not handed:
        raise Invalid(f"payout {payout.id} has no exchange that was handed over to your GCHostPay and is unpaid")
    if len(handed) > 1:
        named = ", ".join(swap.id for swap in handed)
        raise Invalid(f"payout {payout.id} has several exchanges that were handed over; say which one: {named}")
    if await _is_open(tx, "hostpay.task", handed[0].id):
        raise Invalid(
            f"whether GCHostPay was told of swap {handed[0].id} is not known yet; wait a minute, or answer its effect "
            "first, and decide then"
        )
    lead = await payouts.payout_by_unique_id(tx, handed[0].unique_id)
    await next_messages.send_unpaid(tx, lead, handed[0], by)
    reason = f"{by}: GCHostPay has not paid {handed[0].id}; the exchange is being asked"
    return await payouts.hold_payout(tx, payout, payout.hold, reason, as_state=payout.state)


async def _deposited(tx: Tx, payout: Payout, asked: Decision) -> Swap:
    swaps = {
        swap.id: swap
        for swap in await swap_store.active_swaps(tx, payout.id)
        if swap.state is SwapState.PAID_IN and not swap.direct
    }
    if asked.swap_id is None and len(swaps) > 1:
        raise Invalid(f"payout {payout.id} has several deposits at the exchange; say which one: {', '.join(swaps)}")
    found = next(iter(swaps.values()), None) if asked.swap_id is None else swaps.get(asked.swap_id)
    if found is None:
        named = "" if asked.swap_id is None else f" for swap {asked.swap_id[:80]!r}"
        raise Invalid(f"payout {payout.id} has no deposit at the exchange{named}")
    return found


async def _end(tx: Tx, payout: Payout, state: State, asked: Decision) -> Payout:
    _check_state(payout, _MAY_END, asked.verdict)
    for swap in await swap_store.active_swaps(tx, payout.id):
        if swap.triggered_at is not None:
            raise Invalid(
                f"hostpay knows of swap {swap.id} of payout {payout.id}: it may be paid; wait for its "
                "end, or say that its deposit came back or is written off"
            )
        if len(await swap_store.shares_of(tx, swap.id)) > 1:
            raise Invalid(f"swap {swap.id} serves other payouts than {payout.id} too; release it, and decide later")
        if await _is_open(tx, "changenow.create", swap.id):
            raise Invalid(f"whether swap {swap.id} was created is not known yet; wait a minute, and decide then")
        await swap_store.abandon(tx, swap, f"the payout was {state}")
    account = ledger.client_account(payout) if payout.state is State.ACCUMULATING else ledger.OWED
    after = await payouts.move(tx, payout, state, reason=asked.note)
    await tx.post((ledger.rejected if state is State.REJECTED else ledger.refunded)(payout, account))
    return after


async def _is_open(tx: Tx, kind: str, key: str) -> bool:
    """Whether an effect may have happened, or may yet."""
    found: bool = await tx.fetchval(
        """
        select exists (select from payonce.effects
            where kind = $1 and key = $2 and state in ('intended', 'unknown', 'review'))
        """,
        kind,
        key,
    )
    return found


async def _existing_payout(tx: Tx, payout_id: str) -> Payout:
    try:
        return await payouts.payout(tx, payout_id)
    except Retry as missing:
        raise Invalid(f"{missing.reason}; GET /v1/payouts lists them") from None


def _check_state(payout: Payout, allowed: frozenset[State], verdict: Verdict) -> None:
    if payout.state not in allowed:
        states = ", ".join(sorted(allowed))
        raise Invalid(f"payout {payout.id} is {payout.state}; one can {verdict} what is {states}")
