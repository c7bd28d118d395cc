"""A process that asks ChangeNOW for ranges as fast as its budget lets it. Run as a module: URL, database, calls."""

import asyncio
import sys

from payonce.engine.budgets import SharedBudget
from payonce.engine.database import Database
from payonce.kit.http import HttpClient
from payonce.vendors.changenow.client import ChangeNowClient
from payonce.vendors.changenow.port import BUDGET_BURST, BUDGET_PER_S
from tests.vendors.changenow.at import ETH_BTC

WAIT_S = 30.0


async def main(url: str, database_url: str, calls: int) -> None:
    async with Database.open(database_url) as database, HttpClient("changenow", url, allow_private=True) as http:
        client = ChangeNowClient(http, "k", SharedBudget(database, "changenow", BUDGET_PER_S, BUDGET_BURST, WAIT_S))
        await asyncio.gather(*(client.range(ETH_BTC) for _ in range(calls)))
    print("all were answered", flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
