"""What a key may do with transfers."""

from typing import Final

READ: Final = "transfers:read"
WRITE: Final = "transfers:write"

SCOPES: Final = {READ: "see transfers", WRITE: "order transfers"}
