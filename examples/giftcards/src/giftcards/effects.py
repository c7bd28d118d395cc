"""The order to the mint, and how its outcome is found out when the answer is lost."""

from typing import Final

from giftcards.mint.port import KEYS_KEPT_S, CardOrder, IssuedCard, Mint
from giftcards.model import Card
from giftcards.policies import MINT_TIMEOUT_S
from payonce import Amount, DidNot, Effect, Happened, Keyed

KEY_MARGIN_S: Final = 3_600.0
"""The mint counts its day by its own clock: a key that it may soon forget is asked for, not sent again."""


class IssueCard(Effect[CardOrder, IssuedCard]):
    """The same order under the same key is carried out once, so an unanswered one is sent again."""

    kind, version, timeout_s = "mint.issue", 1, MINT_TIMEOUT_S
    safety = Keyed(KEYS_KEPT_S - KEY_MARGIN_S)

    def __init__(self, mint: Mint, card: Card) -> None:
        self.mint = mint
        self.card = card

    async def prepare(self) -> CardOrder:
        amount = self.card.amount
        return CardOrder(self.reference, self.card.holder, amount.to_text(), amount.asset.code)

    async def perform(self, request: CardOrder) -> IssuedCard:
        return await self.mint.issue(request)

    async def resolve(self, request: CardOrder) -> Happened[IssuedCard] | DidNot:
        """Called only after the mint has forgotten the key."""
        found = await self.mint.find(request.key)
        return Happened(found) if found else DidNot()

    def amount(self, request: CardOrder) -> Amount:
        return request.amount

    def vendor_ref(self, outcome: IssuedCard) -> str:
        return outcome.code
