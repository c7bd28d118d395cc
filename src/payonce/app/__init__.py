"""The composition root: which services there are, and how a process is assembled from them."""

from typing import Final

ENTRY_POINTS: Final = "payonce.services"
"""The group under which an installed package declares its services: `giftcards = "giftcards:SERVICE"`."""
