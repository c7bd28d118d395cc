"""Our copy of the exchange's currency list: coins that can be paid out, and coins whose addresses may need a memo."""

from collections.abc import Sequence
from dataclasses import dataclass

from payonce.engine.messages.transaction import Reader, Tx
from payonce.kit.outcomes import Retry
from payonce.services.payouts.api.webhook import PayoutOrder
from payonce.services.payouts.model import Hold, Payout
from payonce.vendors.changenow.port import ChangeNow, Code, Currency, ExchangeRefused


class NoCurrencyList(Exception):
    """There is no copy of the exchange's list yet."""


@dataclass(frozen=True)
class CurrencyProblem:
    hold: Hold
    reason: str
    advice: str = ""
    """Remedy for the caller; operators decide about a held payout instead."""


async def find_currency_problem(read: Reader, asked: PayoutOrder | Payout) -> CurrencyProblem | None:
    """Checks by our copy of the list that the coin can be paid out and that a memo is given where one may be needed.
    Returns None if all is well; raises NoCurrencyList without a copy."""
    currency, network = asked.payout_currency, asked.payout_network
    row = await read.fetchrow(
        """
        select exists (select from payouts.currencies) as known, c.has_extra_id, c.payable
        from (select) as one left join payouts.currencies c on c.ticker = $1 and c.network = $2
        """,
        currency,
        network,
    )
    if not row["known"]:
        raise NoCurrencyList
    if not row["payable"]:
        return CurrencyProblem(
            Hold.PAIR_INACTIVE, f"payout_currency {currency} on the network {network} cannot be paid out"
        )
    if row["has_extra_id"] and not asked.says_extra_id:
        return CurrencyProblem(
            Hold.BAD_ADDRESS,
            f"extra_id is missing: an address of {currency} may need a memo",
            "; if yours needs none, send an empty string",
        )
    if asked.extra_id is not None and not row["has_extra_id"]:
        return CurrencyProblem(Hold.BAD_ADDRESS, f"extra_id is given, but {currency} on {network} has no memos")
    return None


async def fetch_currencies(changenow: ChangeNow) -> Sequence[Currency]:
    """The exchange's currencies. Raises Retry for an empty list, which would refuse every payout, and ExchangeRefused
    only if our key is refused."""
    try:
        found = await changenow.currencies()
    except ExchangeRefused as refusal:
        if refusal.code is Code.NOT_ALLOWED:
            raise
        raise Retry(f"the exchange refuses its currency list: {refusal.reason}") from refusal
    if not found:
        raise Retry("the exchange's currency list is empty")
    return found


async def replace_currencies(tx: Tx, found: Sequence[Currency]) -> None:
    named = {(each.ticker.lower(), each.network.lower()): each for each in found}
    # Without the lock two concurrent refreshes would miss each other's rows.
    await tx.execute("select pg_advisory_xact_lock(hashtextextended('payouts currencies', 0))")
    await tx.execute("delete from payouts.currencies")
    await tx.execute_many(
        """
        insert into payouts.currencies (ticker, network, name, has_extra_id, decimals, payable)
        values ($1, $2, $3, $4, $5, $6)
        """,
        [
            (ticker, network, each.name, each.has_extra_id, each.decimals, each.buy)
            for (ticker, network), each in named.items()
        ],
    )
