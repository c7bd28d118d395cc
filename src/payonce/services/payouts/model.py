"""A payout, the swaps that carry it, and their states."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

import msgspec

from payonce.kit.money import Amount, well_known

USDT: Final = well_known("USDT")
ETH: Final = well_known("ETH")

USDT_TICKER: Final = "usdt"
ETH_TICKER: Final = "eth"
ETH_NETWORK: Final = "eth"
"""Both ends of the estimate, and what the host wallet pays with."""
FLOW: Final = "standard"
TYPE: Final = "direct"
DIRECT: Final = "direct"
"""Prefix of the placeholder exchange id of direct payments: the client gets the coin that the wallet pays."""
BY_WALLET: Final = "wallet"
BY_EXTERNAL: Final = "external"
"""Values of `Swap.paid_by`: our host wallet, or the operator's own GCHostPay."""
PARTS_MAX: Final = 20
"""Above this number of parts an operator decides."""


class State(StrEnum):
    RECEIVED = "received"
    """Recorded; its estimate is requested."""
    PRICED = "priced"
    """Its value in ETH is known."""
    SWAP_CREATING = "swap_creating"
    """Its exchange is ordered, or about to be."""
    SWAPPED = "swapped"
    """Every part has an exchange that waits for its deposit."""
    PAYING = "paying"
    """The wallet is paying, or about to."""
    PAID_IN = "paid_in"
    """Every deposit is final and at the exchange."""
    FINISHED = "finished"
    ACCUMULATING = "accumulating"
    """Too small for the exchange: waits for more payouts of the same client."""
    HELD = "held"
    """Something must be changed first, by an operator."""
    REVIEW = "review"
    """Only an operator can establish what happened."""
    REJECTED = "rejected"
    REFUNDED = "refunded"
    """Paid back to the subscriber, including the fee."""


_KEPT: Final = frozenset({State.HELD, State.REVIEW})

TRANSITIONS: Final[Mapping[State, frozenset[State]]] = {
    State.RECEIVED: frozenset({State.PRICED}) | _KEPT,
    State.PRICED: frozenset({State.SWAP_CREATING}) | _KEPT,
    State.SWAP_CREATING: frozenset({State.SWAPPED, State.PAYING, State.PRICED, State.ACCUMULATING}) | _KEPT,
    State.ACCUMULATING: frozenset({State.PRICED, State.REJECTED, State.REFUNDED}),
    State.SWAPPED: frozenset({State.PAYING, State.PRICED}) | _KEPT,
    State.PAYING: frozenset({State.PAID_IN, State.FINISHED, State.PRICED}) | _KEPT,
    State.PAID_IN: frozenset({State.FINISHED, State.PRICED}) | _KEPT,
    State.HELD: frozenset(
        {
            State.RECEIVED,
            State.PRICED,
            State.SWAP_CREATING,
            State.SWAPPED,
            State.PAYING,
            State.PAID_IN,
            State.FINISHED,
            State.REVIEW,
            State.REJECTED,
            State.REFUNDED,
        }
    ),
    State.REVIEW: frozenset(
        {
            State.RECEIVED,
            State.PRICED,
            State.SWAP_CREATING,
            State.SWAPPED,
            State.PAYING,
            State.PAID_IN,
            State.FINISHED,
            State.HELD,
            State.REJECTED,
            State.REFUNDED,
        }
    ),
    State.FINISHED: frozenset(),
    State.REJECTED: frozenset(),
    State.REFUNDED: frozenset(),
}

ENDED: Final = frozenset(state for state, following in TRANSITIONS.items() if not following)
UNDER_WAY: Final = frozenset(State) - ENDED - _KEPT - {State.ACCUMULATING}
"""States in which a payout must have a message."""


class Hold(StrEnum):
    """Why a payout is held or in review; its `reason` has the details."""

    BAD_ADDRESS = "bad_address"
    PAIR_INACTIVE = "pair_inactive"
    REFUSED = "refused"
    """The exchange refused for a reason that we do not handle."""
    NO_VALUE = "no_value"
    """The exchange's fees consume the amount."""
    TOO_LARGE = "too_large"
    GAVE_UP = "gave_up"
    REPEATED = "repeated"
    """Equal orders within a day, without two payment ids."""
    VERIFYING = "verifying"
    """The exchange verifies the origin of the money."""
    LIMIT = "limit"
    """Above a limit of the wallet."""
    EXCHANGE_FAILED = "exchange_failed"
    MISMATCH = "mismatch"
    """The exchange contradicts our record."""
    PERSON = "person"
    """Held by an operator."""


class SwapState(StrEnum):
    CREATING = "creating"
    CREATED = "created"
    """The exchange waits for the deposit."""
    PAYING = "paying"
    PAID_IN = "paid_in"
    FINISHED = "finished"
    ABANDONED = "abandoned"
    """Given up before hostpay was triggered for it."""
    LAPSED = "lapsed"
    """Given up by hostpay, which had paid nothing."""
    RETURNED = "returned"
    """Paid and refunded; or never paid, since the transaction was reverted or lost."""


SWAP_TRANSITIONS: Final[Mapping[SwapState, frozenset[SwapState]]] = {
    SwapState.CREATING: frozenset({SwapState.CREATED, SwapState.ABANDONED}),
    SwapState.CREATED: frozenset({SwapState.PAYING, SwapState.ABANDONED, SwapState.LAPSED}),
    SwapState.PAYING: frozenset({SwapState.PAID_IN, SwapState.RETURNED}),
    SwapState.PAID_IN: frozenset({SwapState.FINISHED, SwapState.RETURNED}),
    SwapState.FINISHED: frozenset(),
    SwapState.ABANDONED: frozenset(),
    SwapState.LAPSED: frozenset(),
    SwapState.RETURNED: frozenset(),
}
REPLACED: Final = frozenset({SwapState.ABANDONED, SwapState.LAPSED, SwapState.RETURNED})
"""Swaps in these states can be replaced; of all others a part has at most one."""

_BEFORE_PAYING: Final = frozenset({SwapState.CREATING, SwapState.CREATED})
_PAID: Final = frozenset({SwapState.PAID_IN, SwapState.FINISHED})


def state_by(swaps: Iterable[SwapState]) -> State:
    """The state of a payout from the states of its active swaps: the slowest one counts."""
    states = frozenset(swaps)
    if SwapState.CREATING in states:
        return State.SWAP_CREATING
    if states == {SwapState.FINISHED}:
        return State.FINISHED
    if states <= _PAID:
        return State.PAID_IN
    return State.SWAPPED if states <= _BEFORE_PAYING else State.PAYING


class Payout(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    unique_id: str
    payment_id: str | None
    natural_key: str
    user_id: int
    closed_channel_id: str
    wallet_address: str
    extra_id: str | None
    says_extra_id: bool
    """Whether a memo, or its absence, was stated at all."""
    payout_currency: str
    payout_network: str
    price: Amount
    fee: Amount
    adjusted: Amount
    """The price less our fee, in USDT."""
    value: Amount | None
    """Its pure market value in ETH."""
    state: State
    held_from: State | None
    hold: Hold | None
    reason: str | None
    puts: int
    revision: int
    trace_id: str | None
    created_at: datetime
    updated_at: datetime

    @property
    def lane(self) -> str:
        """The channel, by which freezes select payouts."""
        return self.closed_channel_id

    @property
    def is_direct(self) -> bool:
        return (self.payout_currency, self.payout_network) == (ETH_TICKER, ETH_NETWORK)

    @property
    def standing(self) -> State:
        """Its place in the flow, even while it is held or in review."""
        return self.held_from or self.state


class Lead(msgspec.Struct, frozen=True):
    """The payout under whose name a swap runs, as messages carry it. It never changes."""

    id: str
    user_id: int
    closed_channel_id: str

    @property
    def lane(self) -> str:
        return self.closed_channel_id


class Swap(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    unique_id: str
    part: int
    round: int
    currency: str
    network: str
    address: str
    extra_id: str | None
    amount: Amount
    direct: bool
    state: SwapState
    cn_api_id: str | None
    payin_address: str | None
    payin_extra_id: str | None
    valid_until: datetime | None
    triggered_at: datetime | None
    reason: str | None
    paid_by: str = BY_WALLET
    handed_over_at: datetime | None = None
    """When its task for the operator's GCHostPay was about to be created: from then on it may be paid."""
    waits_for: str | None = None
    """Why hostpay has not paid it yet, if an operator has to act."""

    @property
    def scope(self) -> str:
        """Scope of its effects: at most one order of a part is open at the exchange."""
        return f"payout:{self.unique_id}/{self.part}"


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """The amount of a swap that belongs to one part of one payout."""

    swap_id: str
    payout_id: str
    part: int
    amount: Amount


_STATES: Final = {state.value: state for state in State}
_SWAP_STATES: Final = {state.value: state for state in SwapState}
"""Reading rows is the most frequent operation here, and an enum's own look-up took eight times as long."""


def payout_from(row: Any) -> Payout:
    return Payout(
        id=row["id"],
        unique_id=row["unique_id"],
        payment_id=row["payment_id"],
        natural_key=row["natural_key"],
        user_id=row["user_id"],
        closed_channel_id=row["closed_channel_id"],
        wallet_address=row["wallet_address"],
        extra_id=row["extra_id"],
        says_extra_id=row["says_extra_id"],
        payout_currency=row["payout_currency"],
        payout_network=row["payout_network"],
        price=Amount(int(row["price_minor"]), USDT),
        fee=Amount(int(row["fee_minor"]), USDT),
        adjusted=Amount(int(row["adjusted_minor"]), USDT),
        value=None if row["value_minor"] is None else Amount(int(row["value_minor"]), ETH),
        state=_STATES[row["state"]],
        held_from=None if row["held_from"] is None else _STATES[row["held_from"]],
        hold=None if row["hold"] is None else Hold(row["hold"]),
        reason=row["reason"],
        puts=row["puts"],
        revision=row["revision"],
        trace_id=row["trace_id"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
    )


def swap_from(row: Any) -> Swap:
    return Swap(
        id=row["id"],
        unique_id=row["unique_id"],
        part=row["part"],
        round=row["round"],
        currency=row["currency"],
        network=row["network"],
        address=row["address"],
        extra_id=row["extra_id"],
        amount=Amount(int(row["amount_minor"]), ETH),
        direct=row["direct"],
        state=_SWAP_STATES[row["state"]],
        cn_api_id=row["cn_api_id"],
        payin_address=row["payin_address"],
        payin_extra_id=row["payin_extra_id"],
        valid_until=row["valid_until"],
        triggered_at=row["triggered_at"],
        reason=row["reason"],
        paid_by=row["paid_by"],
        handed_over_at=row["handed_over_at"],
        waits_for=row["waits_for"],
    )


def share_from(row: Any) -> Share:
    return Share(
        swap_id=row["swap_id"],
        payout_id=row["payout_id"],
        part=row["part"],
        amount=Amount(int(row["amount_minor"]), ETH),
    )
