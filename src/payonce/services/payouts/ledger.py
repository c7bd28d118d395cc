"""The postings of each step of a payout.

Assets are positive, liabilities negative. Every posting adds up to zero in each asset, so the ledger always balances.
`payouts/owed` and the client's `payouts/accumulated/…` show the amount that each payout still has to receive.
"""

import hashlib
from typing import Final

from payonce.engine.ledger import Line, Posting, Reference, moved
from payonce.kit.money import Amount
from payonce.services.payouts.model import ETH, Payout, Share, Swap

COLLECTED: Final = "payouts/collected"
"""Prices of subscriptions, held by the callers of our webhook."""
FEES: Final = "payouts/fees"
OWED: Final = "payouts/owed"
"""Debts to clients: in USDT until the payout is priced, then in ETH."""
CONVERSION: Final = "payouts/conversion"
"""Our position between the two: USDT that we keep, ETH that we owe for it."""
ACCUMULATED: Final = "payouts/accumulated"
"""Prefix of the clients' accounts of accumulating payouts."""
HOST_WALLET: Final = "payouts/host_wallet"
AT_EXCHANGE: Final = "payouts/at_changenow"
"""Final deposits that the exchange has not paid out yet."""
NETWORK_FEES: Final = "payouts/network_fees"
EXCHANGE_LOSSES: Final = "payouts/exchange_losses"
"""Amounts missing from refunded deposits, less surpluses."""
REJECTED: Final = "payouts/rejected"
"""Payouts rejected by an operator: neither paid nor refunded."""

PAYOUT: Final = "payout"
SWAP: Final = "payout_swap"
"""The kinds of reference."""


def client_account(payout: Payout) -> str:
    """The account of one client: address, memo and coin. Hashed, since paths do not allow all address characters."""
    who = "\n".join(
        (payout.payout_currency, payout.payout_network, payout.wallet_address, payout.extra_id or "")
    ).encode()
    return f"{ACCUMULATED}/{hashlib.sha256(who).hexdigest()[:32]}"


def received(payout: Payout) -> Posting:
    fee = (Line(FEES, -payout.fee),) if payout.fee else ()
    return _of(payout, "received", (Line(COLLECTED, payout.price), *fee, Line(OWED, -payout.adjusted)))


def priced(payout: Payout, value: Amount) -> Posting:
    return _of(payout, "priced", (*moved(payout.adjusted, CONVERSION, OWED), *moved(value, OWED, CONVERSION)))


def accumulated(payout: Payout, swap_id: str) -> Posting:
    """The payout was too small for this swap."""
    return _of(payout, f"accumulated:{swap_id}", moved(_value(payout), client_account(payout), OWED))


def batched(payout: Payout, swap_id: str) -> Posting:
    """The payout is part of a batch, in this swap."""
    return _of(payout, f"batched:{swap_id}", moved(_value(payout), OWED, client_account(payout)))


def refunded(payout: Payout, from_account: str = OWED) -> Posting:
    """Reverses the receipt, including the fee; a priced payout is converted back at its original price."""
    fee = (Line(FEES, payout.fee),) if payout.fee else ()
    lines = (Line(COLLECTED, -payout.price), *fee)
    if payout.value is None:
        return _of(payout, "refunded", (*lines, Line(OWED, payout.adjusted)))
    back = (Line(CONVERSION, payout.adjusted), *moved(payout.value, CONVERSION, from_account))
    return _of(payout, "refunded", (*lines, *back))


def rejected(payout: Payout, from_account: str = OWED) -> Posting:
    amount = payout.adjusted if payout.value is None else payout.value
    return _of(payout, "rejected", moved(amount, REJECTED, from_account))


def paid_in(swap: Swap, gas: Amount) -> Posting | None:
    """The deposit is at the exchange, and the network has its fee. None for a direct payment without a fee, which is
    posted per payout when it is finished."""
    lines = () if swap.direct else moved(swap.amount, HOST_WALLET, AT_EXCHANGE)
    fee = moved(gas, HOST_WALLET, NETWORK_FEES) if gas else ()
    if not (lines or fee):
        return None
    return Posting(f"payout_swap:{swap.id}:paid_in", Reference(SWAP, swap.id), (*lines, *fee), "paid in")


def finished(swap: Swap, share: Share) -> Posting:
    """The client has received this share."""
    return Posting(
        f"payout_swap:{swap.id}:finished:{share.payout_id}:{share.part}",
        Reference(PAYOUT, share.payout_id),
        moved(share.amount, HOST_WALLET if swap.direct else AT_EXCHANGE, OWED),
        "finished",
    )


def sent_back(swap: Swap, transaction_hash: str, counted: Amount, more: Amount) -> Posting:
    """A transaction returned this much of the deposit to the wallet, and `more` than was missing."""
    lines = moved(counted, AT_EXCHANGE, HOST_WALLET) if counted else ()
    gain = moved(more, EXCHANGE_LOSSES, HOST_WALLET) if more else ()
    key = f"payout_swap:{swap.id}:sent_back:{transaction_hash}"
    return Posting(key, Reference(SWAP, swap.id), (*lines, *gain), "sent back")


def not_sent_back(swap: Swap, lost: Amount) -> Posting:
    """The exchange kept this much of a deposit."""
    lines = moved(lost, AT_EXCHANGE, EXCHANGE_LOSSES)
    return Posting(f"payout_swap:{swap.id}:returned", Reference(SWAP, swap.id), lines, "returned")


def sent_back_and_finished(swap: Swap, counted: Amount) -> Posting:
    """The client was paid although the deposit came back: the refund is a gain."""
    lines = moved(counted, EXCHANGE_LOSSES, AT_EXCHANGE)
    return Posting(f"payout_swap:{swap.id}:gained", Reference(SWAP, swap.id), lines, "gained")


def _value(payout: Payout) -> Amount:
    assert payout.value is not None and payout.value.asset == ETH
    return payout.value


def _of(payout: Payout, step: str, lines: tuple[Line, ...]) -> Posting:
    return Posting(f"payout:{payout.id}:{step}", Reference(PAYOUT, payout.id), lines, step.partition(":")[0])
