"""Runs in company: many runs of one queue that send their statements and commit together."""

from typing import cast

import asyncpg

from payonce.engine.company.apart import Apart
from payonce.engine.company.asking import Asking
from payonce.engine.company.deeds import Deed, Item, Result
from payonce.engine.company.sharing import Member, Sharing
from payonce.engine.database import Connection, Database

__all__ = ["Apart", "Asking", "Company", "Deed", "Item", "Member", "Result", "gathered"]


class Company:
    """What the runs of one queue share."""

    def __init__(self, database: Database) -> None:
        self.asking = Asking(database.shared)
        self.ending = Sharing(database)
        self.intending = Sharing(database)
        """Apart from those that end: a vendor is asked sooner than an answer is noted."""


async def gathered(
    source: Connection | asyncpg.Pool | Asking, deed: Deed[Item, Result], item: Item, lock: object = None
) -> Result:
    """Does something that is cheaper for many at once, with all that are about to do the same through this source;
    where there is nobody else, for itself. `lock` is the id of the row that it changes, if others may want it."""
    if isinstance(source, Member):
        return await source.gather(deed, item, lock)
    if isinstance(source, Asking):
        return await source.gather(deed, item)
    [result] = await deed(cast(Connection, source), [item])
    return result
