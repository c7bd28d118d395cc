"""What an API key may do with gift cards."""

from typing import Final

READ: Final = "giftcards:read"
WRITE: Final = "giftcards:write"

SCOPES: Final = {READ: "see gift cards", WRITE: "order gift cards"}
