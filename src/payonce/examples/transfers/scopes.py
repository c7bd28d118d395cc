"""The scopes of API keys for transfers."""

from typing import Final

READ: Final = "transfers:read"
WRITE: Final = "transfers:write"

SCOPES: Final = {READ: "see transfers", WRITE: "order transfers"}
