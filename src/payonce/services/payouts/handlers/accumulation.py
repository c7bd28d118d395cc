"""Payouts too small for the exchange, or for their gas: accumulated by client until they are enough for one swap."""

from typing import Final

from payonce.engine.messages.transaction import Tx
from payonce.engine.messages.work import Work, handles
from payonce.kit.money import Amount
from payonce.kit.outcomes import Unprocessable
from payonce.services.payouts import ledger
from payonce.services.payouts.domain.addresses import key_of
from payonce.services.payouts.handlers import next_messages
from payonce.services.payouts.handlers.wallet import HostWallet
from payonce.services.payouts.model import ETH, Payout, State, payout_from
from payonce.services.payouts.policies import KEEPING
from payonce.services.payouts.store import payouts, swaps
from payonce.services.payouts.store.minimums import payment_range
from payonce.vendors.changenow.port import ChangeNow, ExchangeRefused, Range

BATCH_MAX: Final = 100
"""Payouts per swap, unless more are needed to reach the minimum."""
BATCH_LIMIT: Final = 1_000
"""Upper bound if more are needed: the number that one transaction moves."""
CLIENTS_MAX: Final = 1_000
"""Clients per run; a further message continues after them."""

CHANGENOW: Final = "changenow"
EVM: Final = "evm"
SERVICE: Final = "payouts"
"""Names in freezes: the vendor that would create a batch's exchange, the one that would pay it, and the service."""

BATCH: Final = "batch_client"
LOOK: Final = "look_for_batches"


async def accumulate(tx: Tx, payout: Payout, swap_id: str) -> None:
    """Leaves the payout to a later batch, and checks at once whether the client's total is enough already."""
    waiting = await payouts.move(tx, payout, State.ACCUMULATING)
    await tx.post(ledger.accumulated(waiting, swap_id))
    await _put(tx, waiting, f"batch:{swap_id}:{payout.id}")


@handles(KEEPING, LOOK)
async def look_for_batches(work: Work) -> None:
    """Scheduled: minimums change, so totals that were too small may be enough now."""
    after = work.message.payload.get("after")
    rows = await work.read.fetch(
        """
        select distinct on (payout_currency, payout_network, address_key, coalesce(extra_id, '')) *
        from (select *, payouts.address_key(wallet_address) as address_key from payouts.payouts
              where state = 'accumulating') waiting
        where $2::text[] is null
           or (payout_currency, payout_network, address_key, coalesce(extra_id, ''))
                > (($2::text[])[1], ($2::text[])[2], ($2::text[])[3], ($2::text[])[4])
        order by payout_currency, payout_network, address_key, coalesce(extra_id, ''), created_at limit $1
        """,
        CLIENTS_MAX,
        after,
    )
    async with work.commit() as tx:
        for row in rows:
            await _put(tx, payout_from(row), f"batch:{work.message.id}:{row['id']}")
        if len(rows) == CLIENTS_MAX:
            last = rows[-1]
            client = [last[name] or "" for name in ("payout_currency", "payout_network", "address_key", "extra_id")]
            await tx.send(KEEPING, {"after": client}, action=LOOK, key=f"look:{work.message.id}")


@handles(KEEPING, BATCH)
async def batch_client(work: Work, changenow: ChangeNow, host: HostWallet | None) -> None:
    """Begin one swap for a client's accumulated payouts once they reach the exchange's minimum or are worth the gas."""
    of = await payouts.find(work.read, work.message.correlation_id or "")
    if of is None:
        raise Unprocessable(f"there is no payout {work.message.correlation_id!r} to batch")
    try:
        taken = await payment_range(changenow, host, (of.payout_currency, of.payout_network))
    except ExchangeRefused as refusal:
        async with work.commit(rejected=refusal.reason):
            return
    async with work.commit() as tx:
        # Read before any row is locked: a freeze waits for its readers, which must not wait for us.
        frozen = await _frozen_lanes(tx, of)
        if chosen := choose_batch(await _waiting(tx, of, frozen), taken):
            await _begin_batch(tx, chosen)


def choose_batch(waiting: list[Payout], taken: Range) -> list[Payout]:
    """The oldest payouts that fit one swap; if even BATCH_LIMIT of them are too little, the largest ones. Empty if no
    choice reaches the minimum."""
    return _filled(waiting, taken) or _filled(sorted(waiting, key=_value, reverse=True), taken)


def _filled(waiting: list[Payout], taken: Range) -> list[Payout]:
    """Adds payouts in this order, skipping those that would exceed the maximum."""
    total, chosen = Amount.zero(ETH), list[Payout]()
    for payout in waiting:
        sufficient = total.to_decimal() >= taken.min_amount
        if len(chosen) >= (BATCH_MAX if sufficient else BATCH_LIMIT):
            break
        if taken.max_amount is None or (total + _value(payout)).to_decimal() <= taken.max_amount:
            total += _value(payout)
            chosen.append(payout)
    return chosen if chosen and total.to_decimal() >= taken.min_amount else []


def _value(payout: Payout) -> Amount:
    assert payout.value is not None
    return payout.value


async def _begin_batch(tx: Tx, chosen: list[Payout]) -> None:
    priced = [await payouts.move(tx, payout, State.PRICED) for payout in chosen]
    shares = [(payout.id, 1, payout.value) for payout in priced if payout.value is not None]
    swap = await swaps.begin_swap(tx, priced[0], 1, shares)
    for payout in priced:
        await tx.post(ledger.batched(payout, swap.id))
    await next_messages.send_swap(tx, priced[0], swap)


async def _frozen_lanes(tx: Tx, of: Payout) -> list[str]:
    """Channels of this client that a freeze stops; the batch excludes them."""
    rows = await tx.fetch(
        """
        select lane from (
            select distinct closed_channel_id as lane from payouts.payouts
            where state = 'accumulating' and payout_currency = $1 and payout_network = $2
              and payouts.address_key(wallet_address) = $3 and extra_id is not distinct from $4) waiting
        where exists (select from payonce.freeze_on($5, null, lane, $7))
           or exists (select from payonce.freeze_on($6, $8, lane, $7))
        """,
        of.payout_currency,
        of.payout_network,
        key_of(of.wallet_address),
        of.extra_id,
        CHANGENOW,
        EVM,
        SERVICE,
        ETH.code,
    )
    return [row["lane"] for row in rows]


async def _waiting(tx: Tx, of: Payout, frozen: list[str]) -> list[Payout]:
    """Oldest first; locked in the order of their ids, so that two batches of one client cannot deadlock."""
    rows = await tx.fetch(
        """
        select * from payouts.payouts
        where state = 'accumulating' and payout_currency = $1 and payout_network = $2
          and payouts.address_key(wallet_address) = $3 and extra_id is not distinct from $4
          and closed_channel_id <> all($5::text[])
        order by id for update
        """,
        of.payout_currency,
        of.payout_network,
        key_of(of.wallet_address),
        of.extra_id,
        frozen,
    )
    return sorted((payout_from(row) for row in rows), key=lambda payout: (payout.created_at, payout.id))


async def _put(tx: Tx, payout: Payout, key: str) -> None:
    await tx.send(KEEPING, {}, action=BATCH, key=key, correlation_id=payout.id)
