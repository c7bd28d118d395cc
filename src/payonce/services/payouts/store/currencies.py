"""The exchange's list of currencies as we have it: what can be paid out, and whose addresses may need a memo."""

from collections.abc import Sequence
from dataclasses import dataclass

from payonce.engine.messages.transaction import Reader, Tx
from payonce.kit.outcomes import Retry
from payonce.services.payouts.api.webhook import PayoutOrder
from payonce.services.payouts.model import Hold, Payout
from payonce.vendors.changenow.port import ChangeNow, Code, Currency, ExchangeRefused


class NoCurrencyList(Exception):
    """The exchange has not said yet what it changes."""


@dataclass(frozen=True)
class CurrencyProblem:
    hold: Hold
    reason: str
    advice: str = ""
    """For the caller; a person who finds the payout held has a decision instead."""


async def find_currency_problem(read: Reader, asked: PayoutOrder | Payout) -> CurrencyProblem | None:
    """By what the exchange said last: is the currency paid out on that network, and is there a memo where one may be
    needed. Raises NoList while nobody can tell."""
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
            Hold.PAIR_INACTIVE, f"payout_currency {currency} on the network {network} is not paid out"
        )
    if row["has_extra_id"] and not asked.says_extra_id:
        return CurrencyProblem(
            Hold.BAD_ADDRESS,
            f"extra_id is missing: an address of {currency} may need a memo",
            "; if yours needs none, send an empty text",
        )
    if asked.extra_id is not None and not row["has_extra_id"]:
        return CurrencyProblem(Hold.BAD_ADDRESS, f"extra_id is given, and {currency} on {network} has no memos")
    return None


async def fetch_currencies(changenow: ChangeNow) -> Sequence[Currency]:
    """An answer that names none is no answer: everybody would be refused. ExchangeRefused is about our key alone."""
    try:
        found = await changenow.currencies()
    except ExchangeRefused as refusal:
        if refusal.code is Code.NOT_ALLOWED:
            raise
        raise Retry(f"the exchange does not say what it changes: {refusal.reason}") from refusal
    if not found:
        raise Retry("the exchange names no currencies at all")
    return found


async def replace_currencies(tx: Tx, found: Sequence[Currency]) -> None:
    named = {(each.ticker.lower(), each.network.lower()): each for each in found}
    # Two at the same moment would each miss what the other one writes.
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
