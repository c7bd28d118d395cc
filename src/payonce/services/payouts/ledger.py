"""What each step of a payout writes into the books.

What we have or are owed is positive, what we owe is negative. Every posting adds up to zero in each asset, so the books
close at every moment; per payout, `payouts/owed` and the client's `payouts/accumulated/…` say what is still to be paid.
"""

import hashlib
from typing import Final

from payonce.engine.ledger import Line, Posting, Reference, moved
from payonce.kit.money import Amount
from payonce.services.payouts.model import ETH, Payout, Share, Swap

COLLECTED: Final = "payouts/collected"
"""Prices that were paid for subscriptions, with whoever calls our webhook."""
FEES: Final = "payouts/fees"
OWED: Final = "payouts/owed"
"""To clients: in USDT until it is priced, then in ETH."""
CONVERSION: Final = "payouts/conversion"
"""Our position between the two: USDT that we keep, ETH that we owe for it."""
ACCUMULATED: Final = "payouts/accumulated"
"""Followed by the client: what waits until it is enough for the exchange."""
HOST_WALLET: Final = "payouts/host_wallet"
AT_EXCHANGE: Final = "payouts/at_changenow"
"""Deposits that are final at the exchange and have not become payouts yet."""
NETWORK_FEES: Final = "payouts/network_fees"
EXCHANGE_LOSSES: Final = "payouts/exchange_losses"
"""What the exchange kept of a deposit that it sent back, less what it sent too much."""
REJECTED: Final = "payouts/rejected"
"""Owed to nobody by a person's decision, and not given back."""

PAYOUT: Final = "payout"
SWAP: Final = "payout_swap"
"""The kinds of reference."""


def client_account(payout: Payout) -> str:
    """The same client is the same address, memo and coin; a hash, since addresses have characters that paths lack."""
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
    """It was too small for this swap."""
    return _of(payout, f"accumulated:{swap_id}", moved(_value(payout), client_account(payout), OWED))


def batched(payout: Payout, swap_id: str) -> Posting:
    """Together with others it is enough, in this swap."""
    return _of(payout, f"batched:{swap_id}", moved(_value(payout), OWED, client_account(payout)))


def refunded(payout: Payout, from_account: str = OWED) -> Posting:
    """Undoes what was received, the fee included; what was priced is converted back at the price it had."""
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
    """The deposit is final: the exchange has it, and the network its fee. None: there is nothing to write, as a direct
    payment is written when it is finished, to each it serves."""
    lines = () if swap.direct else moved(swap.amount, HOST_WALLET, AT_EXCHANGE)
    fee = moved(gas, HOST_WALLET, NETWORK_FEES) if gas else ()
    if not (lines or fee):
        return None
    return Posting(f"payout_swap:{swap.id}:paid_in", Reference(SWAP, swap.id), (*lines, *fee), "paid in")


def finished(swap: Swap, share: Share) -> Posting:
    """The client has it."""
    return Posting(
        f"payout_swap:{swap.id}:finished:{share.payout_id}:{share.part}",
        Reference(PAYOUT, share.payout_id),
        moved(share.amount, HOST_WALLET if swap.direct else AT_EXCHANGE, OWED),
        "finished",
    )


def sent_back(swap: Swap, transaction_hash: str, counted: Amount, more: Amount) -> Posting:
    """A transaction brought this much of the deposit back to the wallet, and perhaps more than was missing."""
    lines = moved(counted, AT_EXCHANGE, HOST_WALLET) if counted else ()
    gain = moved(more, EXCHANGE_LOSSES, HOST_WALLET) if more else ()
    key = f"payout_swap:{swap.id}:sent_back:{transaction_hash}"
    return Posting(key, Reference(SWAP, swap.id), (*lines, *gain), "sent back")


def not_sent_back(swap: Swap, lost: Amount) -> Posting:
    """What is missing of a deposit that no longer counts: the exchange kept it."""
    lines = moved(lost, AT_EXCHANGE, EXCHANGE_LOSSES)
    return Posting(f"payout_swap:{swap.id}:returned", Reference(SWAP, swap.id), lines, "returned")


def sent_back_and_finished(swap: Swap, counted: Amount) -> Posting:
    """The client has it all the same: what came back of the deposit is a gain."""
    lines = moved(counted, EXCHANGE_LOSSES, AT_EXCHANGE)
    return Posting(f"payout_swap:{swap.id}:gained", Reference(SWAP, swap.id), lines, "gained")


def _value(payout: Payout) -> Amount:
    assert payout.value is not None and payout.value.asset == ETH
    return payout.value


def _of(payout: Payout, step: str, lines: tuple[Line, ...]) -> Posting:
    return Posting(f"payout:{payout.id}:{step}", Reference(PAYOUT, payout.id), lines, step.partition(":")[0])
