"""What a person decides about a payout: let it go on, elsewhere if need be, keep it, reject it, or give the money back.

One action, carried out at once or, above the thresholds of its assets, when a second person has agreed.
"""

from enum import StrEnum
from typing import Any, Final

import msgspec

from payonce.engine.brakes import Action, Weighed
from payonce.engine.queue import Admin
from payonce.engine.transaction import Tx
from payonce.kit.outcomes import Invalid, Retry, Stale
from payonce.services.payouts import books, sending, store, swap_store
from payonce.services.payouts.addresses import wrong_with
from payonce.services.payouts.model import UNDER_WAY, Hold, Payout, State

ACTION: Final = "decide payout"
_KEPT: Final = frozenset({State.HELD, State.REVIEW})
_MAY_END: Final = _KEPT | {State.ACCUMULATING}


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


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    payout_id: str
    seen: int
    """The revision of what the person looked at."""
    verdict: Verdict
    note: str
    address: str | None = None
    extra_id: str | None = None
    """Of the new address; an empty one says that it needs none, as at intake."""


def deciding(_: Admin) -> Action[Decision]:
    return Action(ACTION, Decision, _weigh, _execute)


async def _weigh(tx: Tx, asked: Decision) -> Weighed:
    payout = await _known(tx, asked.payout_id)
    amounts = [] if asked.verdict is Verdict.HOLD else [payout.adjusted]
    if amounts and payout.value is not None:
        amounts.append(payout.value)
    where = f" to {asked.address}" if asked.verdict is Verdict.READDRESS else ""
    text = f"{asked.verdict} payout {payout.id}{where}, which is {payout.state} ({payout.adjusted})"
    return Weighed(payout.id, text, amounts)


async def _execute(tx: Tx, asked: Decision, by: str) -> dict[str, Any]:
    await _known(tx, asked.payout_id)
    payout = await store.locked(tx, asked.payout_id)
    if payout.revision != asked.seen:
        raise Stale(f"payout {payout.id} has changed since you looked at it; look again")
    match asked.verdict:
        case Verdict.RELEASE:
            after = await _release(tx, payout)
        case Verdict.READDRESS:
            after = await _readdress(tx, payout, asked)
        case Verdict.HOLD:
            _check(payout, UNDER_WAY, asked.verdict)
            after = await store.keep(tx, payout, Hold.PERSON, f"{by}: {asked.note}")
        case Verdict.REJECT:
            after = await _end(tx, payout, State.REJECTED, asked)
        case Verdict.REFUND:
            after = await _end(tx, payout, State.REFUNDED, asked)
    return {"payout": after.id, "state": after.state.value}


async def _release(tx: Tx, payout: Payout) -> Payout:
    _check(payout, _KEPT, Verdict.RELEASE)
    assert payout.held_from is not None
    released = await store.move(tx, payout, payout.held_from)
    await sending.resume(tx, released)
    return released


async def _readdress(tx: Tx, payout: Payout, asked: Decision) -> Payout:
    """Only while nothing of it is ordered: what is ordered has the address it has."""
    _check(payout, _KEPT, asked.verdict)
    address = asked.address or ""
    if (wrong := wrong_with(payout.payout_network, address)) is not None:
        raise Invalid(f"{address[:80]!r} {wrong}")
    await _check_memo(tx, payout, asked.extra_id)
    if await swap_store.active_swaps(tx, payout.id):
        raise Invalid(f"payout {payout.id} has a swap to the address it has; release it, or wait until that is over")
    await tx.execute(
        """
        update payouts.payouts set wallet_address = $2, extra_id = $3, says_extra_id = true where id = $1
        """,
        payout.id, asked.address, asked.extra_id or None,
    )  # fmt: skip
    await tx.execute(
        """
        update payouts.split_payout_request set client_wallet_address = $2, updated_at = payonce.due_now()
        where unique_id = $1
        """,
        payout.unique_id, asked.address,
    )  # fmt: skip
    return await _release(tx, await store.locked(tx, payout.id))


async def _check_memo(tx: Tx, payout: Payout, given: str | None) -> None:
    """What is sent to an exchange's address without its memo is lost to the client. Without a list of currencies, a
    payout that has a memo tells that its coin knows them."""
    has_memos = await tx.fetchval(
        "select has_extra_id from payouts.currencies where ticker = $1 and network = $2",
        payout.payout_currency, payout.payout_network,
    )  # fmt: skip
    coin = f"{payout.payout_currency} on {payout.payout_network}"
    if given is None and (has_memos or payout.extra_id is not None):
        raise Invalid(f"extra_id is missing: an address of {coin} may need a memo; if this one needs none, say so")
    if given and has_memos is False:
        raise Invalid(f"extra_id is {given[:40]!r}, and {coin} has no memos; leave it out")


async def _end(tx: Tx, payout: Payout, state: State, asked: Decision) -> Payout:
    _check(payout, _MAY_END, asked.verdict)
    for swap in await swap_store.active_swaps(tx, payout.id):
        if swap.triggered_at is not None:
            raise Invalid(f"hostpay knows of swap {swap.id} of payout {payout.id}: it may be paid; wait for its end")
        if len(await swap_store.shares_of(tx, swap.id)) > 1:
            raise Invalid(f"swap {swap.id} serves other payouts than {payout.id} too; release it, and decide later")
        await _check_nothing_open(tx, swap.id)
        await swap_store.abandon(tx, swap, f"the payout was {state}")
    account = books.client_account(payout) if payout.state is State.ACCUMULATING else books.OWED
    after = await store.move(tx, payout, state, reason=asked.note)
    await tx.post((books.rejected if state is State.REJECTED else books.refunded)(payout, account))
    return after


async def _check_nothing_open(tx: Tx, swap_id: str) -> None:
    is_open = await tx.fetchval(
        """
        select exists (select from payonce.effects
            where kind = 'changenow.create' and key = $1 and state in ('intended', 'unknown', 'review'))
        """,
        swap_id,
    )
    if is_open:
        raise Invalid(f"whether swap {swap_id} was created is not known yet; wait a minute, and decide then")


async def _known(tx: Tx, payout_id: str) -> Payout:
    try:
        return await store.payout(tx, payout_id)
    except Retry as missing:
        raise Invalid(f"{missing.reason}; GET /v1/payouts lists them") from None


def _check(payout: Payout, allowed: frozenset[State], verdict: Verdict) -> None:
    if payout.state not in allowed:
        states = ", ".join(sorted(allowed))
        raise Invalid(f"payout {payout.id} is {payout.state}; one can {verdict} what is {states}")
