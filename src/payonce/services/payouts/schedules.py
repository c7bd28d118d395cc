"""Scheduled jobs: the exchange's currency list, and payouts without a message."""

from typing import Final

from payonce.engine.audit import Severity
from payonce.engine.janitors import Every, Schedule
from payonce.engine.messages.transaction import Tx
from payonce.engine.messages.work import Work, handles
from payonce.kit.log import get_logger
from payonce.kit.outcomes import Retry
from payonce.services.payouts.handlers import next_messages
from payonce.services.payouts.handlers.accumulation import LOOK
from payonce.services.payouts.model import UNDER_WAY, Hold, State, payout_from
from payonce.services.payouts.policies import KEEPING
from payonce.services.payouts.reconciliation import COMPARE
from payonce.services.payouts.store import payouts, swaps
from payonce.services.payouts.store.currencies import fetch_currencies, replace_currencies
from payonce.vendors.changenow.port import ChangeNow, ExchangeRefused

FORGOTTEN_AFTER_S: Final = 300.0
"""This long after its last change, a payout without a message has lost it and is not just between two hops."""
PUT_BACK_MAX: Final = 100
"""Per run; the next run finds the others."""

CURRENCIES: Final = "refresh_currencies"
PUT_BACK: Final = "put_back_payouts"

SCHEDULES: Final = (
    Schedule("payouts-currencies", KEEPING, every=Every(600), action=CURRENCIES),
    Schedule("payouts-batches", KEEPING, every=Every(300), action=LOOK),
    Schedule("payouts-exchanges", KEEPING, every=Every(86_400), action=COMPARE),
    Schedule("payouts-put-back", KEEPING, every=Every(60), action=PUT_BACK),
)

log = get_logger(__name__)


@handles(KEEPING, CURRENCIES)
async def refresh_currencies(work: Work, changenow: ChangeNow) -> None:
    """Refreshes our copy of the exchange's list. Before the first run the estimator fetches it, as it prices no payout
    without one."""
    try:
        found = await fetch_currencies(changenow)
    except ExchangeRefused as refusal:
        raise Retry(f"the exchange refuses its currency list: {refusal.reason}") from refusal
    async with work.commit() as tx:
        await replace_currencies(tx, found)


@handles(KEEPING, PUT_BACK)
async def put_back_payouts(work: Work) -> None:
    """Gives a new message to each payout under way that has none, since a task service may lose tasks and operators may
    purge queues. A payout with only parked messages goes to review."""
    async with work.commit() as tx:
        await _hold_parked(tx)
        rows = await tx.fetch(
            f"""
            select p.id from payouts.payouts p
            where p.state = any($1::text[])
              and p.updated_at < payonce.due_now() - make_interval(secs => $2::float8)
              and not exists ({MESSAGES_OF_A_PAYOUT})
            order by p.updated_at limit $3 for update of p skip locked
            """,
            sorted(UNDER_WAY),
            FORGOTTEN_AFTER_S,
            PUT_BACK_MAX,
        )
        for row in rows:
            payout = await payouts.locked(tx, row["id"])
            await next_messages.resume(tx, payout)
            log.warning("payout_put_back", payout=payout.id, state=payout.state.value)
            await tx.audit(
                "payouts.put_back",
                payout.id,
                f"the payout was {payout.state} and had no message",
                actor="payouts",
                severity=Severity.WARNING,
            )
        await _follow_paid_swaps(tx)


async def _follow_paid_swaps(tx: Tx) -> None:
    """The payment of a held payout continues: only its follow-up is requeued. A payment that may not have been sent
    waits until an operator releases the payout."""
    rows = await tx.fetch(
        f"""
        select s.id from payouts.payouts p join payouts.shares h on h.payout_id = p.id and h.active
        join payouts.swaps s on s.id = h.swap_id
        where p.state in ('held', 'review') and (s.state = 'paid_in'
              or s.state = 'created' and s.handed_over_at is not null or s.state = 'paying' and exists (
                select from payonce.effects e
                where e.kind = 'evm.pay' and e.key = s.id || '/pay' and e.state = 'performed'))
          and p.updated_at < payonce.due_now() - make_interval(secs => $1::float8)
          and not exists ({MESSAGES_OF_A_PAYOUT})
        order by p.updated_at limit $2 for update of p skip locked
        """,
        FORGOTTEN_AFTER_S,
        PUT_BACK_MAX,
    )
    for swap_id in dict.fromkeys(row["id"] for row in rows):
        swap = await swaps.swap(tx, swap_id)
        lead = await payouts.payout_by_unique_id(tx, swap.unique_id)
        await next_messages.send_follow_up(tx, lead, swap)
        log.warning("payout_put_back", payout=lead.id, swap=swap.id)
        await tx.audit(
            "payouts.put_back",
            lead.id,
            f"swap {swap.id} was {swap.state} and had no message",
            actor="payouts",
            severity=Severity.WARNING,
        )


async def _hold_parked(tx: Tx) -> None:
    rows = await tx.fetch(
        f"""
        select p.*, (select m.last_error {_MESSAGES} and m.state = 'parked' limit 1) as cause from payouts.payouts p
        where p.state = any($1::text[]) and exists ({MESSAGES_OF_A_PAYOUT} and m.state = 'parked')
          and not exists ({MESSAGES_OF_A_PAYOUT} and m.state <> 'parked')
        order by p.updated_at limit $2 for update of p skip locked
        """,
        sorted(UNDER_WAY),
        PUT_BACK_MAX,
    )
    for row in rows:
        cause = (row["cause"] or "no reason given")[: payouts.CAUSE_MAX_LENGTH]
        reason = f"{cause}; its message is parked: release it when the cause is resolved"
        await payouts.hold_payout(tx, payout_from(row), Hold.GAVE_UP, reason, as_state=State.REVIEW)


_MESSAGES: Final = f"""
    from payonce.live_messages m
    where m.queue <> '{KEEPING.queue}' and m.correlation_id in (
        select p.id union all
        select lead.id from payouts.shares h join payouts.swaps s on s.id = h.swap_id
        join payouts.payouts lead on lead.unique_id = s.unique_id where h.payout_id = p.id and h.active)
"""
MESSAGES_OF_A_PAYOUT: Final = f"select {_MESSAGES}"
"""Messages of the payout `p`, or of the leading payout of one of its swaps."""
