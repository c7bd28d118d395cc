"""What the service asks of the mint."""

from typing import Final, Protocol, runtime_checkable

import msgspec

from payonce import Amount, well_known

KEYS_KEPT_S: Final = 24 * 3_600.0
"""How long the mint remembers a key, by its own clock."""


class CardOrder(msgspec.Struct, frozen=True):
    """Sent again unchanged, it is carried out once."""

    key: str
    holder: str
    value: str
    """Major units, a decimal text."""
    currency: str

    @property
    def amount(self) -> Amount:
        return Amount.from_decimal(self.value, well_known(self.currency))


class IssuedCard(msgspec.Struct, frozen=True):
    code: str
    key: str


@runtime_checkable
class Mint(Protocol):
    async def issue(self, order: CardOrder) -> IssuedCard:
        """Raises Refused (a definite no), NotSent (it never arrived) or Unknown."""
        ...

    async def find(self, key: str) -> IssuedCard | None:
        """By key, also after the mint has stopped honouring it. Raises NotSent or Unknown."""
        ...
