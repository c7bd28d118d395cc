"""Runs in company: many runs of one queue that send their statements and commit together."""

from payonce.engine.company.apart import Apart
from payonce.engine.company.asking import Asking
from payonce.engine.company.sharing import Deed, Item, Member, Result, Sharing
from payonce.engine.database import Database

__all__ = ["Apart", "Asking", "Company", "Deed", "Item", "Member", "Result"]


class Company:
    """What the runs of one queue share."""

    def __init__(self, database: Database) -> None:
        self.asking = Asking(database.shared)
        self.ending = Sharing(database)
        self.intending = Sharing(database)
        """Apart from those that end: a vendor is asked sooner than an answer is noted."""
