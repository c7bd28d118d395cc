"""A process that asks ChangeNOW for ranges as fast as its budget lets it, and says when each request went out. Run as a
module: URL, database, calls."""

import asyncio
import sys
import time

from payonce.engine.database.connections import Database
from payonce.engine.database.rate_limits import SharedBudget
from payonce.kit.http import HttpClient
from payonce.kit.http.response import Attempt
from payonce.kit.http.sockets import SocketTransport
from payonce.kit.http.transport import Outgoing
from payonce.vendors.changenow.client import ChangeNowClient
from payonce.vendors.changenow.port import BUDGET_BURST, BUDGET_PER_S
from tests.vendors.changenow.at import ETH_BTC

WAIT_S = 30.0


class Noting(SocketTransport):
    """What becomes of a request behind here is not the caller's doing: the vendor may be slow to read."""

    async def exchange(self, outgoing: Outgoing, attempt: Attempt) -> None:
        # All processes of a machine have this clock in common.
        print(f"sent at {time.monotonic():.6f}", flush=True)
        await super().exchange(outgoing, attempt)


async def main(url: str, database_url: str, calls: int) -> None:
    noting = Noting(connect_timeout_s=WAIT_S, connections_max=100, allow_private=True, resolve=None, tls=None)
    async with (
        Database.open(database_url) as database,
        HttpClient("changenow", url, allow_private=True, timeout_s=WAIT_S, transport=noting) as http,
    ):
        client = ChangeNowClient(http, "k", SharedBudget(database, "changenow", BUDGET_PER_S, BUDGET_BURST, WAIT_S))
        await asyncio.gather(*(client.range(ETH_BTC) for _ in range(calls)))
    print("all were answered", flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
