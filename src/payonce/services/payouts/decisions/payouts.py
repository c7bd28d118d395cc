"""Operators' decisions about a payout: release it, to another address if need be, hold, reject or refund it; and about
a deposit at a failed exchange: it came back, or it is lost.

All are one action. It is carried out at once or, above the thresholds of its assets, when a second person has agreed.
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
    """Continues where it stopped."""
    READDRESS = "readdress"
    """Continues with another address."""
    HOLD = "hold"
    REJECT = "reject"
    """Neither paid nor refunded."""
    REFUND = "refund"
    """All postings are reversed, including the fee: the money is paid back, or the order was a repetition."""
    RETURNED = "returned"
    """Two people state that a transaction returned the deposit; hostpay verifies it by exchange and chain."""
    WRITE_OFF = "write_off"
    """Two people state that the deposit is lost; hostpay verifies that the exchange has given it up too."""
    UNPAID = "unpaid"
    """Two people state that your own GCHostPay has not paid the exchange and will not. Its task is deleted, and the
    exchange is asked whether it has seen money."""


_BY_TWO: Final = {
    Verdict.RETURNED: "a deposit is declared returned",
    Verdict.WRITE_OFF: "a deposit is written off",
    Verdict.UNPAID: "an exchange that was handed over is declared unpaid",
}
"""These need two people whatever the amount, since a payout without a deposit can be paid again."""


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    payout_id: str
    seen: int
    """The revision that the operator saw."""
    verdict: Verdict
    note: str
    address: str | None = None
    extra_id: str | None = None
    """Memo of the new address; an empty one states that it needs none, as at intake."""
    transaction: str | None = None
    """Hash of the transaction that returned the deposit."""
    swap_id: str | None = None
    """The swap of the deposit, if the payout has several deposits at the exchange."""


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
        raise Stale(f"payout {payout.id} has changed since you loaded it; reload it")
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
    """Possible only while no exchange is ordered: an order keeps its address."""
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
                f"payout {payout.id} has a swap to its present address; release it, or wait until that swap has ended"
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
    """By the record: a wallet of ours that has paid, or the refund address of the payout priced last. Before the first
    price, the estimator checks."""
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
    """Whether the swap was never ordered and serves only this payout. An order is recorded before it is sent, in a
    transaction that waits for the payout's lock, which we hold."""
    if swap.state is not SwapState.CREATING or len(await swap_store.shares_of(tx, swap.id)) > 1:
        return False
    ordered: bool = await tx.fetchval(
        "select exists (select from payonce.effects where kind = 'changenow.create' and key = $1)", swap.id
    )
    return not ordered


async def _check_memo(tx: Tx, payout: Payout, given: str | None) -> None:
    """Money sent to an exchange's address without its memo is lost to the client. Without a currency list, a payout's
    existing memo shows that its coin has memos."""
    if given and not is_memo(given):
        raise Invalid(f"extra_id is {given[:40]!r}; it {MEMO_RULE}")
    has_memos = await tx.fetchval(
        "select has_extra_id from payouts.currencies where ticker = $1 and network = $2",
        payout.payout_currency,
        payout.payout_network,
    )
    coin = f"{payout.payout_currency} on {payout.payout_network}"
    if given is None and (has_memos or payout.extra_id is not None):
        raise Invalid(f"extra_id is missing: an address of {coin} may need a memo; if it needs none, give an empty one")
    if given and has_memos is False:
        raise Invalid(f"extra_id is {given[:40]!r}, but {coin} has no memos; omit it")


async def _end_deposit(tx: Tx, payout: Payout, asked: Decision, by: str) -> Payout:
    """Asks hostpay, which has the wallet, to verify and record the statement. Afterwards the payout waits for a
    decision, as unpaid or with the reason of the refusal."""
    _check_state(payout, _KEPT, asked.verdict)
    assert payout.hold is not None
    swap = await _deposited(tx, payout, asked)
    if asked.verdict is Verdict.RETURNED and swap.paid_by == BY_EXTERNAL:
        raise Invalid(
            f"swap {swap.id} was paid by your own GCHostPay, whose wallet payonce does not watch; write the deposit "
            "off, then release or refund the payout"
        )
    lead = await payouts.payout_by_unique_id(tx, swap.unique_id)
    if asked.verdict is Verdict.WRITE_OFF:
        reason = f"{by}: the deposit of {swap.id} is lost; verification pending"
        await next_messages.send_written_off(tx, lead, swap, by)
    else:
        transaction = (asked.transaction or "").strip().lower()
        if _HASH.fullmatch(transaction) is None:
            raise Invalid(f"{transaction[:80]!r} is not a transaction hash; give 0x and 64 hexadecimal digits")
        if owner := await tx.fetchval("select swap_id from payouts.refunds where hash = $1", transaction):
            raise Invalid(f"transaction {transaction} is already counted for swap {owner}; give another one")
        reason = f"{by}: the deposit of {swap.id} came back by {transaction}; verification pending"
        await next_messages.send_returned(tx, lead, swap, transaction)
    return await payouts.hold_payout(tx, payout, payout.hold, reason, as_state=payout.state)


async def _end_unpaid(tx: Tx, payout: Payout, asked: Decision, by: str) -> Payout:
    """Asks the orchestrator to check the exchange. If it has seen no money either, the payout waits as unpaid."""
    _check_state(payout, _KEPT, asked.verdict)
    assert payout.hold is not None
    handed = [
        swap
        for swap in await swap_store.active_swaps(tx, payout.id)
        if swap.handed_over_at is not None and swap.state is SwapState.CREATED and asked.swap_id in (None, swap.id)
    ]
    if not handed:
        raise Invalid(f"payout {payout.id} has no unpaid exchange that was handed over to your GCHostPay")
    if len(handed) > 1:
        named = ", ".join(swap.id for swap in handed)
        raise Invalid(
            f"payout {payout.id} has several exchanges that were handed over; give the swap_id of one: {named}"
        )
    if await _is_open(tx, "hostpay.task", handed[0].id):
        raise Invalid(
            f"it is not known yet whether GCHostPay has a task for swap {handed[0].id}; wait a minute, or answer its "
            "effect first"
        )
    lead = await payouts.payout_by_unique_id(tx, handed[0].unique_id)
    await next_messages.send_unpaid(tx, lead, handed[0], by)
    reason = f"{by}: GCHostPay has not paid {handed[0].id}; verification pending"
    return await payouts.hold_payout(tx, payout, payout.hold, reason, as_state=payout.state)


async def _deposited(tx: Tx, payout: Payout, asked: Decision) -> Swap:
    swaps = {
        swap.id: swap
        for swap in await swap_store.active_swaps(tx, payout.id)
        if swap.state is SwapState.PAID_IN and not swap.direct
    }
    if asked.swap_id is None and len(swaps) > 1:
        raise Invalid(
            f"payout {payout.id} has several deposits at the exchange; give the swap_id of one: {', '.join(swaps)}"
        )
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
                f"hostpay was triggered for swap {swap.id} of payout {payout.id}, so it may be paid; wait for its "
                "end, or declare its deposit returned or written off"
            )
        if len(await swap_store.shares_of(tx, swap.id)) > 1:
            raise Invalid(f"swap {swap.id} also serves other payouts than {payout.id}; release it and decide later")
        if await _is_open(tx, "changenow.create", swap.id):
            raise Invalid(f"it is not known yet whether swap {swap.id} was created; wait a minute")
        await swap_store.abandon(tx, swap, f"the payout was {state}")
    account = ledger.client_account(payout) if payout.state is State.ACCUMULATING else ledger.OWED
    after = await payouts.move(tx, payout, state, reason=asked.note)
    await tx.post((ledger.rejected if state is State.REJECTED else ledger.refunded)(payout, account))
    return after


async def _is_open(tx: Tx, kind: str, key: str) -> bool:
    """Whether an effect may have happened or may still happen."""
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
        raise Invalid(f"payout {payout.id} is {payout.state}; {verdict} requires {states}")
