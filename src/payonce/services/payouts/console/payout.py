"""The page of one payout: its timeline, and the decisions that are safe in its state."""

from datetime import datetime
from typing import Any, Final

from starlette.responses import Response

from payonce.console.decisions import Confirmation, DecisionForm, decide
from payonce.console.forms import name_of, number_of, reason_of, text_of
from payonce.console.page import Visit
from payonce.console.reads import bounded
from payonce.engine.controls import Approval, waiting_approval
from payonce.engine.messages.transaction import Reader
from payonce.engine.monitoring.timeline import Kind, read_timeline
from payonce.kit.outcomes import Invalid, PayonceError, Stale
from payonce.services.payouts.console.queries import payout_of
from payonce.services.payouts.decisions.payouts import ACTION, Decision, Verdict
from payonce.services.payouts.model import Hold, Payout
from payonce.services.payouts.store import timeline

ABOVE_LIMIT: Final = "pay above limit"
"""The action for which hostpay requests approvals; its subject is the unique_id of the swap's leading payout."""
_FINAL: Final = (Verdict.REJECT, Verdict.REFUND, Verdict.RETURNED, Verdict.WRITE_OFF, Verdict.UNPAID)
FIELDS: Final = ("verdict", "address", "extra_id", "no_memo", "transaction", "swap_id", "why", "seen")

CHOICES: Final = {
    Verdict.RELEASE: (
        "Release the payout",
        "The payout continues where it stopped, to its present address. It is held again if the cause persists.",
    ),
    Verdict.READDRESS: (
        "Release it to another address",
        "Nothing is ordered yet. The payout is paid only to the address that you enter.",
    ),
    Verdict.HOLD: ("Hold the payout", "No new step begins until an operator releases it. Payments already made stand."),
    Verdict.REFUND: (
        "Refund the payout",
        "All postings are reversed, including the fee. You pay the money back to the subscriber yourself.",
    ),
    Verdict.REJECT: (
        "Reject the payout",
        "The payout is neither paid nor refunded; the ledger records it as rejected. This cannot be undone.",
    ),
    Verdict.RETURNED: (
        "The deposit came back",
        "Two people confirm it. Unless exchange or chain contradict, the payout waits as unpaid and can be paid again.",
    ),
    Verdict.WRITE_OFF: (
        "Write the deposit off",
        "The ledger records a loss if the exchange has given it up too. Releasing the payout then pays a second time.",
    ),
    Verdict.UNPAID: (
        "GCHostPay did not pay it",
        "Two people confirm it from GCHostPay's records. Its task is deleted, and the payout waits as unpaid.",
    ),
}
"""Label and consequence of each decision."""

NEXT_STEP: Final = {
    Hold.BAD_ADDRESS: "Ask the client for an address of that network and release the payout to it, or refund it.",
    Hold.PAIR_INACTIVE: "Check whether ChangeNOW has reactivated the pair, then release the payout.",
    Hold.REFUSED: "Read the exchange's refusal. Release the payout when the cause is resolved, or refund it.",
    Hold.NO_VALUE: "The exchange's fees exceed the payout: refund or reject it.",
    Hold.TOO_LARGE: "Ask ChangeNOW for a higher limit, then release the payout.",
    Hold.GAVE_UP: "Read the last errors in its trace. When the cause is resolved, release the payout.",
    Hold.REPEATED: "Ask the caller whether two payouts were meant. If so, release it; otherwise refund it.",
    Hold.VERIFYING: "Answer ChangeNOW's questions about the money. Then the payout continues by itself.",
    Hold.LIMIT: "An approver grants the payment, or an operator releases it when the daily limit allows it again.",
    Hold.EXCHANGE_FAILED: "Read why the exchange failed. If the wallet has paid, reclaim the money from ChangeNOW "
    "first; when it is back or written off, release the payout for another round, or refund it.",
    Hold.MISMATCH: "Compare the exchange with our record before you decide.",
    Hold.PERSON: "An operator held it; the reason is above.",
}


async def show_payout(visit: Visit) -> Response:
    return await _page(visit, await payout_of(visit))


async def decide_payout(visit: Visit) -> Response:
    payout = await payout_of(visit)

    async def refused(error: PayonceError) -> Response:
        return await _page(visit, await payout_of(visit), error)

    form = DecisionForm(
        ACTION,
        f"/payouts/{payout.id}",
        read=lambda: _given(visit, payout),
        confirm=lambda given, _: _confirmation(payout, given),
        done=lambda _, end: visit.done(f"/payouts/{payout.id}", f"The payout is {_said(end.result['state'])}."),
        refused=refused,
        trace_id=payout.trace_id,
    )
    return await decide(visit, form)


def _given(visit: Visit, payout: Payout) -> Decision:
    said = text_of(visit.form, "verdict")
    if said not in tuple(Verdict):
        raise Invalid(f"the decision is {said[:40]!r}; choose one of those offered")
    seen = number_of(visit.form, "seen")
    if seen is None:
        raise Invalid("the form lacks the payout's revision; reload the page")
    moved = Verdict(said) is Verdict.READDRESS
    address, extra_id = name_of(visit.form, "address"), name_of(visit.form, "extra_id")
    if extra_id is None and text_of(visit.form, "no_memo") == "yes":
        extra_id = ""
    if moved and address is None:
        raise Invalid(f"the new address is missing; give one of the network {payout.payout_network}")
    if ACTION not in visit.context.actions:
        raise Invalid("this process does not know payouts; decide in the console of one that does")
    return Decision(
        payout_id=payout.id,
        seen=seen,
        verdict=Verdict(said),
        note=reason_of(visit.form),
        address=address if moved else None,
        extra_id=extra_id if moved else None,
        transaction=name_of(visit.form, "transaction"),
        swap_id=name_of(visit.form, "swap_id"),
    )


def _confirmation(payout: Payout, given: Decision) -> Confirmation:
    label, consequence = CHOICES[given.verdict]
    sentences = [consequence]
    if given.address is not None:
        memo = f" with the memo {given.extra_id}." if given.extra_id else ", without a memo."
        sentences.append(f"From {payout.wallet_address} to {given.address}{memo}")
    if given.verdict is Verdict.RETURNED:
        sentences.append(f"By transaction {given.transaction}.")
    crumbs = [("Payouts", "/payouts"), (payout.unique_id, f"/payouts/{payout.id}")]
    return Confirmation(f"{label}?", crumbs, sentences, label, FIELDS, danger=given.verdict in _FINAL)


async def _page(visit: Visit, payout: Payout, problem: PayonceError | None = None) -> Response:
    async with bounded(visit) as read:
        swaps = await timeline.carrying_swaps(read, payout)
        facts = await timeline.timeline_entries(read, payout, swaps)
        told = await read_timeline(read, payout.id)
        if not told.entries and payout.trace_id is not None:
            told = await read_timeline(read, payout.trace_id)
        reviews = await timeline.effects_in_review(read, swaps)
    waiting = await _waiting(visit.context.read, payout, swaps)
    # `facts` contains postings and notes, found by their subject: those of a batch have another trace.
    timeline_entries = [
        timeline_entry for timeline_entry in told.entries if timeline_entry.kind not in (Kind.POSTING, Kind.NOTE)
    ]
    verdicts = [] if waiting or ACTION not in visit.context.actions else timeline.available_verdicts(payout, swaps)
    status = 200 if problem is None else 409 if isinstance(problem, Stale) else 400
    return visit.page(
        "payouts/payout.html",
        f"Payout {payout.unique_id}",
        status=status,
        payout=payout,
        swaps=swaps,
        waiting=waiting,
        reviews=reviews,
        timeline_entries=sorted([*facts, *timeline_entries], key=_at),
        truncated=told.truncated,
        choices=[(each, *CHOICES[each]) for each in verdicts],
        next_step=None if payout.hold is None else NEXT_STEP[payout.hold],
        seen=payout.revision,
        problem="" if problem is None else str(problem),
        shown=timeline.shown,
        typed={name: text_of(visit.form, name) for name in FIELDS},
    )


async def _waiting(read: Reader, payout: Payout, swaps: list[timeline.CarryingSwap]) -> Approval | None:
    """The approval that a second person has to decide first."""
    subjects = [(ACTION, payout.id), *((ABOVE_LIMIT, lead) for lead in {each.swap.unique_id: None for each in swaps})]
    for action, subject in subjects:
        if (found := await waiting_approval(read, action, subject)) is not None:
            return found
    return None


def _said(state: str) -> str:
    return state.replace("_", " ")


def _at(timeline_entry: Any) -> datetime:
    at: datetime = timeline_entry.at
    return at
