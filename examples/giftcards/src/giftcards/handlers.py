"""Issues cards, and expires those that nobody used within a year."""

from typing import Final

from giftcards import store
from giftcards.effects import IssueCard
from giftcards.mint.port import Mint
from giftcards.model import VALID_FOR, State
from giftcards.policies import EXPIRY, ISSUE, OrderedCard
from payonce import NoPayload, Refused, Work, handles

EXPIRED_AT_ONCE: Final = 100


@handles(ISSUE)
async def issue_card(work: Work[OrderedCard], mint: Mint) -> None:
    """Running twice is harmless: the effect's key is the card."""
    card = await store.card_of(work.read, work.payload.card_id)
    if card.state not in (State.ORDERED, State.ISSUING):
        return
    try:
        issued = await work.effect(
            IssueCard(mint, card),
            key=f"{card.id}/issue",
            scope=f"giftcard:{card.id}",
            intent=lambda tx: store.move(tx, card, State.ORDERED, State.ISSUING),
        )
    except Refused as refusal:
        async with work.commit(rejected=refusal.reason) as tx:
            await store.move(tx, card, State.ISSUING, State.REFUSED, reason=refusal.reason)
        return
    async with work.commit() as tx:
        await store.move(tx, card, State.ISSUING, State.ISSUED, code=issued.code)
        await tx.post(card.issued())


@handles(EXPIRY)
async def expire_cards(work: Work[NoPayload]) -> None:
    """One batch and, if more may be left, the message for the next batch are one commit."""
    async with work.commit() as tx:
        now = await tx.fetchval("select payonce.due_now()")
        cards = await store.issued_before(tx, now - VALID_FOR, EXPIRED_AT_ONCE)
        for card in cards:
            await store.move(tx, card, State.ISSUED, State.EXPIRED)
            await tx.post(card.expired())
        if len(cards) == EXPIRED_AT_ONCE:
            await tx.send(EXPIRY, NoPayload())
