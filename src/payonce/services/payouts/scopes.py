"""The scopes of API keys for payouts."""

from typing import Final

READ: Final = "payouts:read"
DECIDE: Final = "payouts:decide"

SCOPES: Final = {READ: "see payouts, quotes and statements", DECIDE: "hold, release, reject or refund payouts"}
