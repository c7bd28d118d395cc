"""The command line of a payonce with one more service, which reads the statement of a bank: run as a process."""

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

from payonce.app import registry
from payonce.cli.application import run_command
from payonce.engine.database.connections import Database
from payonce.examples import tally
from payonce.service import Service
from payonce.settings import Settings
from tests.engine.bank import Bank, BankStatement


async def clock() -> datetime:
    return datetime.now(UTC)


@asynccontextmanager
async def open_bank(settings: Settings, database: Database) -> AsyncIterator[Sequence[object]]:
    bank = Bank(clock)
    for minutes in (50, 40, 30):
        bank.book("bank.fee", None, -minutes, datetime.now(UTC) - timedelta(minutes=minutes))
    yield [bank]


def main() -> None:
    service = Service(
        "tally",
        "payonce.examples.tally",
        tally.ROLES,
        tally.INVARIANTS,
        resources=open_bank,
        statements=lambda opened: [BankStatement(each) for each in opened if isinstance(each, Bank)],
    )
    registry.SERVICES = (service,)  # type: ignore[misc]
    sys.exit(run_command(sys.argv[1:]))


if __name__ == "__main__":
    main()
