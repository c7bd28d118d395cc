"""Plans of payouts' statements: one that was made for an empty table must not read all of a full one."""

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import asyncpg

import payonce
from payonce.engine.database.connections import Connection
from payonce.services.payouts.store.lookup import find_payouts
from payonce.testing import OpenStage
from tests.conformance.wire import on_the_wire
from tests.services.payouts.hostpay_stage import House
from tests.services.payouts.test_concurrent_payouts import busy_house, order, run

SOURCE: Final = Path(payonce.__file__).parent
FOLDERS: Final = (
    "services/payouts",
    "engine/effects",
    "engine/controls",
    "engine/webhooks",
    "engine/outbox",
    "engine/ledger",
    "engine/controls/quarantine",
    "engine/audit",
    "queues/postgres",
    "queues/cloudtasks",
    "queues/redis",
)
FILES: Final = (
    "engine/database/leases.py",
    "engine/messages/declarations.py",
    "engine/messages/idempotency.py",
    "engine/messages/job_log.py",
    "engine/messages/inbox.py",
)
VERBS: Final = ("select ", "select\n", "insert ", "update ", "delete ", "with ")
LEAST_SENT: Final = 40
LEAST_READING: Final = 25
TABLES: Final = frozenset(
    {
        "payouts",
        "parts",
        "swaps",
        "shares",
        "wallet_payments",
        "wallet_attempts",
        "split_payout_request",
        "split_payout_que",
        "split_payout_hostpay",
        "effects",
    }
)
"""Those that grow with every payout."""
OF_FEW: Final = frozenset({"swaps_waiting", "effects_open"})
"""Indexes that leave nearly all rows out: these may be read to their ends."""
MANY: Final = """
    insert into payouts.payouts (id, unique_id, natural_key, user_id, closed_channel_id, wallet_address,
        payout_currency, payout_network, price_minor, fee_minor, adjusted_minor, value_minor, state)
    select 'many-' || n, upper(lpad(to_hex(n), 16, 'M')), 'n' || n, n, '-1001', '0x' || lpad(to_hex(n), 40, '0'),
        'usdt', 'eth', 100, 0, 100, 40, 'priced' from generate_series(1, 1000) n;
    insert into payouts.parts (payout_id, part, amount_minor)
    select 'many-' || n, 1, 40 from generate_series(1, 1000) n;
    insert into payouts.swaps (id, unique_id, part, round, currency, network, address, amount_minor, state, cn_api_id,
        payin_address)
    select 'many-' || n, upper(lpad(to_hex(n), 16, 'M')), 1, 1, 'usdt', 'eth', '0x1', 40, 'created', 'many-' || n,
        '0x' || lpad(to_hex(n), 40, 'f') from generate_series(1, 1000) n;
    insert into payouts.shares (swap_id, payout_id, part, amount_minor)
    select 'many-' || n, 'many-' || n, 1, 40 from generate_series(1, 1000) n;
"""


def texts() -> Iterator[tuple[str, str]]:
    """What looks like a statement in the sources, with where it stands."""
    paths = [path for folder in FOLDERS for path in sorted((SOURCE / folder).rglob("*.py"))]
    for path in [*paths, *(SOURCE / name for name in FILES)]:
        for node in ast.walk(ast.parse(path.read_text())):
            text = node.value if isinstance(node, ast.Constant) else None
            if isinstance(text, str) and text.strip().lower().startswith(VERBS):
                yield f"{path.relative_to(SOURCE)}:{getattr(node, 'lineno', 0)}", text


async def sent_by_payouts(house: House) -> list[str]:
    """Also those that are put together on the way."""
    sent: set[str] = set()

    def see(statement: str) -> str:
        if statement.strip().lower().startswith(VERBS):
            sent.add(statement)
        return statement

    with on_the_wire(see):
        await order(house, 1)
        await order(house, 2, to=f"0x{1:040x}")
        await run(house)
        await order(house, 3)
        await run(house)
    return sorted(sent)


async def whole_tables(connection: Connection, sql: str, name: str) -> list[str] | None:
    """The growing tables of which its plan reads all; None for what has no plan."""
    try:
        count = len((await connection.prepare(sql)).get_parameters())
        await connection.execute("set plan_cache_mode = force_generic_plan")
        await connection.execute(f"prepare {name} as {sql}")
        arguments = f"({', '.join(['null'] * count)})" if count else ""
        [[plan]] = await connection.fetch(f"explain (format json) execute {name}{arguments}")
    except asyncpg.PostgresError:
        return None
    found = []

    def look(node: Any) -> None:
        table, few = node.get("Relation Name"), node.get("Index Name") in OF_FEW
        # The rows of a bitmap heap scan are those of the index scans below it.
        scans = "Scan" in node["Node Type"] and node["Node Type"] != "Bitmap Heap Scan"
        if scans and table in TABLES and "Index Cond" not in node and not few:
            found.append(table)
        for each in node.get("Plans", ()):
            look(each)

    look(json.loads(plan)[0]["Plan"])
    return found


async def test_no_plan_that_is_made_for_empty_tables_reads_all_of_a_full_one(stage: OpenStage) -> None:
    """A session keeps its plans, and the first payout may be the one that they are made for."""
    async with busy_house(stage) as house:
        sent = await sent_by_payouts(house)
        async with house.s.database.handlers.acquire() as connection:
            plans = {sql: await whole_tables(connection, sql, f"planned_{number}") for number, sql in enumerate(sent)}
    assert not {sql: tables for sql, tables in plans.items() if tables}
    assert sum(tables is not None for tables in plans.values()) >= LEAST_SENT


async def test_nor_does_one_for_tables_that_were_analysed_while_they_were_empty(stage: OpenStage) -> None:
    """The planner then takes them for empty until they are analysed again. Of those that never were it expects more."""
    async with busy_house(stage) as house:
        sent = await sent_by_payouts(house)
    # Few payouts have an earlier round.
    sent += [sql for where, sql in texts() if "payouts/earlier.py" in where]
    async with stage() as s, s.database.handlers.acquire() as connection:
        await s.owner.execute("vacuum analyze")
        reading = [sql for sql in sent if "payouts." in sql or "payonce.effects" in sql]
        plans = {sql: await whole_tables(connection, sql, f"planned_{number}") for number, sql in enumerate(reading)}
    assert not {sql: tables for sql, tables in plans.items() if tables}
    assert sum(tables is not None for tables in plans.values()) >= LEAST_READING


async def test_a_payout_is_found_by_index_whatever_a_person_holds(stage: OpenStage) -> None:
    """Among a thousand payouts: a planner that knows few rows rightly reads them all."""
    sent: list[str] = []

    def see(statement: str) -> str:
        sent.append(statement)
        return statement

    async with busy_house(stage) as house:
        with on_the_wire(see):
            await order(house, 1)
            await run(house)
            await find_payouts(house.s.read, "bc1q")
        [statement] = [each for each in sent if "deposit address" in each]
        await house.s.owner.execute(MANY)
        await house.s.owner.execute("analyze")
        async with house.s.database.handlers.acquire() as connection:
            read = await whole_tables(connection, statement, "finding")
    assert read is not None
    assert not {"payouts", "swaps", "shares"} & set(read)
