"""The random outcomes of exchanges at the simulated exchange."""

import hashlib
from dataclasses import dataclass

from payonce.vendors.changenow.books import Fate


@dataclass(frozen=True)
class Fates:
    """The shares of exchanges that fail, refund or verify, drawn by seed and exchange."""

    seed: int = 0
    fail: float = 0.0
    refund: float = 0.0
    verify: float = 0.0

    def draw(self, exchange_id: str) -> Fate:
        digest = hashlib.blake2b(f"{self.seed}\x00{exchange_id}".encode(), digest_size=8).digest()
        place = int.from_bytes(digest, "big") / 2**64
        for fate, share in ((Fate.FAIL, self.fail), (Fate.REFUND, self.refund), (Fate.VERIFY, self.verify)):
            if place < share:
                return fate
            place -= share
        return Fate.FINISH
