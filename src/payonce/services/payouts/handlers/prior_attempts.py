"""Earlier rounds of a payout: before it is paid again, the exchange and the chain must confirm that they were not
paid."""

from typing import Any, Final

from payonce.engine.messages.work import Work
from payonce.kit.outcomes import Retry
from payonce.services.payouts.handlers.wallet import HostWallet, chain_answer
from payonce.services.payouts.model import Swap
from payonce.services.payouts.store import wallet
from payonce.services.payouts.store.wallet import PaymentState
from payonce.vendors.changenow.port import ChangeNow, Status

UNFUNDED: Final = frozenset({Status.NEW, Status.WAITING, Status.EXPIRED})
"""In these states the exchange reports no deposit."""
GIVEN_UP: Final = UNFUNDED | {Status.FAILED, Status.REFUNDED}
"""In these states the exchange pays the client nothing."""


def contradicts(status: Status, payment: str | None) -> bool:
    """Whether the exchange's status contradicts our record of a replaced swap. It cannot have seen a payment that we
    have as lost."""
    return status not in (UNFUNDED if payment == PaymentState.LOST else GIVEN_UP)


async def find_prior_payment(work: Work, changenow: ChangeNow, host: HostWallet | None, swap: Swap) -> str:
    """Describes an earlier swap of the same payouts that was paid although we have it as replaced; empty if none was.
    An operator who releases a payout may not know, and the next payment would be the second."""
    rows = await work.read.fetch(
        """
        select distinct s.id, s.cn_api_id, s.direct, p.state as payment from payouts.shares mine
        cross join lateral (
            select swap_id from payouts.shares where payout_id = mine.payout_id and not active offset 0) h
        cross join lateral (select * from payouts.swaps where id = h.swap_id limit 1) s
        left join payouts.wallet_payments p on p.swap_id = s.id
        where mine.swap_id = $1 and s.id <> $1 and s.state in ('lapsed', 'returned') order by s.id
        """,
        swap.id,
    )
    for row in rows:
        if why := await _at_exchange(changenow, row) or await _on_chain(work, host, row):
            return why
    return ""


async def _at_exchange(changenow: ChangeNow, row: Any) -> str:
    if row["direct"]:
        return ""
    found = await changenow.exchange(row["cn_api_id"])
    if found is None:
        raise Retry(f"the exchange does not know {row['cn_api_id']}, which belongs to an earlier round")
    if contradicts(found.status, row["payment"]):
        return f"exchange {found.id} of the earlier swap {row['id']} is {found.status}: another payment may be a second"
    return ""


async def _on_chain(work: Work, host: HostWallet | None, row: Any) -> str:
    if row["payment"] != PaymentState.LOST:
        return ""
    if host is None:
        return f"without a wallet it is unknown whether the lost payment of the earlier swap {row['id']} was made"
    attempts = await wallet.attempts_of(work.read, row["id"])
    standing = await chain_answer(host.wallet.status([attempt.signed.hash for attempt in attempts]))
    found = [receipt.hash for receipt in standing.receipts if receipt.succeeded]
    return f"transaction {found[0]} of the earlier swap {row['id']} is in a block after all" if found else ""
