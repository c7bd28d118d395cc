"""Every statement that runs in company may send can be sent for many askers: it gives what it gave, and one column."""

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import asyncpg

import payonce
from payonce.engine.company import lateral
from payonce.engine.company.telling import ASKER, shape_of
from payonce.engine.database import Connection
from payonce.testing import OpenStage
from tests.conformance.wire import on_the_wire
from tests.services.payouts.hostpay_stage import House
from tests.services.payouts.test_company import company, order, run

SOURCE: Final = Path(payonce.__file__).parent
FOLDERS: Final = (
    "services/payouts", "engine/effects", "engine/brakes", "engine/webhooks", "engine/outbox", "engine/ledger",
    "engine/quarantine", "engine/audit", "queues/postgres", "queues/cloudtasks", "queues/redis",
)  # fmt: skip
FILES: Final = (
    "engine/leases.py",
    "engine/declared.py",
    "engine/idempotency.py",
    "engine/joblog.py",
    "engine/inbox.py",
)
VERBS: Final = ("select ", "select\n", "insert ", "update ", "delete ", "with ")
LEAST_TEXTS: Final = 150
LEAST_SENT: Final = 40
LEAST_FOR_ALL: Final = 80
TABLES: Final = frozenset({
    "payouts", "parts", "swaps", "shares", "wallet_payments", "wallet_attempts", "split_payout_request",
    "split_payout_que", "split_payout_hostpay", "effects",
})  # fmt: skip
"""Those that grow with every payout."""
OF_FEW: Final = frozenset({"swaps_waiting", "effects_open"})
"""Indexes that leave nearly all rows out: these may be read to their ends."""


def texts() -> Iterator[tuple[str, str]]:
    """What looks like a statement in the sources, with where it stands."""
    paths = [path for folder in FOLDERS for path in sorted((SOURCE / folder).rglob("*.py"))]
    for path in [*paths, *(SOURCE / name for name in FILES)]:
        for node in ast.walk(ast.parse(path.read_text())):
            text = node.value if isinstance(node, ast.Constant) else None
            if isinstance(text, str) and text.strip().lower().startswith(VERBS):
                yield f"{path.relative_to(SOURCE)}:{getattr(node, 'lineno', 0)}", text


async def told_apart_is_right(connection: Connection, sql: str) -> bool:
    """Whether it is a statement at all; fails where it is one and cannot be told apart."""
    try:
        plain = await connection.prepare(sql)
    except asyncpg.PostgresError:
        return False
    shape = shape_of(sql, len(plain.get_parameters()))
    columns = [each.name for each in plain.get_attributes()]
    assert shape.answers or not columns, f"its rows would be lost: {sql}"
    if shape.told_apart is not None:
        told = await connection.prepare(shape.told_apart)
        assert [each.name for each in told.get_attributes()] == [*columns, ASKER], sql
        assert len(told.get_parameters()) == len(plain.get_parameters()) + 1, sql
    for_all = (await lateral.known(connection, sql)).for_all
    if for_all is not None:
        told = await connection.prepare(for_all)
        assert [each.name for each in told.get_attributes()] == [*columns, ASKER], sql
        assert len(told.get_parameters()) == len(plain.get_parameters()), sql
    return True


async def test_every_statement_of_the_sources_is_told_apart_rightly(stage: OpenStage) -> None:
    checked = 0
    async with stage() as s, s.database.work.acquire() as connection:
        for where, sql in texts():
            try:
                checked += await told_apart_is_right(connection, sql)
            except asyncpg.PostgresError as error:
                raise AssertionError(f"{where}: {error}") from error
    assert checked >= LEAST_TEXTS, checked


async def sent_in_company(house: House) -> list[str]:
    """Also those that are put together on the way."""
    sent: set[str] = set()

    def see(statement: str) -> str:
        if ASKER not in statement and statement.strip().lower().startswith(VERBS):
            sent.add(statement)
        return statement

    with on_the_wire(see):
        await order(house, 1)
        await order(house, 2, to=f"0x{1:040x}")
        await run(house)
        await order(house, 3)
        await run(house)
    return sorted(sent)


async def test_every_statement_that_payouts_send_in_company_is_told_apart_rightly(stage: OpenStage) -> None:
    async with company(stage) as house:
        sent = await sent_in_company(house)
        async with house.s.database.work.acquire() as connection:
            # What only the owner may do is the test's own.
            checked = [await told_apart_is_right(connection, sql) for sql in sent]
    assert sum(checked) >= LEAST_SENT, sum(checked)


async def test_rows_are_found_for_many_as_for_one(stage: OpenStage) -> None:
    """By the same plan for one asker after the other, whatever the tables held when it was made."""
    async with company(stage) as house, house.s.database.shared.acquire() as connection:
        checked = await plans_are_alike(connection)
        assert checked >= LEAST_FOR_ALL, checked
        for number in range(8):
            await order(house, number)
        await run(house)
        await house.s.owner.execute("analyze")
        assert await plans_are_alike(connection) == checked


async def test_views_only_read(stage: OpenStage) -> None:
    """Nobody looks at what they call when a statement reads from them."""
    async with stage() as s:
        views = await s.owner.fetch(
            "select viewname, definition from pg_views where schemaname not in ('pg_catalog', 'information_schema')"
        )
        assert views
        for name, definition in views:
            assert (await lateral.known(s.owner, definition)).only_reads, name


async def plans_are_alike(connection: Connection) -> int:
    checked = 0
    for where, sql in texts():
        try:
            for_all = (await lateral.known(connection, sql)).for_all
        except asyncpg.PostgresError:
            continue
        if for_all is not None:
            one, many = await planned(connection, sql), await planned(connection, for_all)
            assert many["Node Type"] == "Nested Loop", where
            askers, found = many["Plans"]
            assert askers["Alias"] == "asking__", where
            below = found["Plans"] if found["Node Type"] == "Subquery Scan" else []
            assert steps(one) in [steps(each) for each in (found, *below)], where
            checked += 1
    return checked


async def planned(connection: Connection, sql: str) -> dict[str, Any]:
    arguments = ", ".join("null" for _ in (await connection.prepare(sql)).get_parameters())
    await connection.execute(f"prepare planned as {sql}")
    explained = json.loads(await connection.fetchval(f"explain (format json) execute planned ({arguments})"))
    await connection.execute("deallocate planned")
    plan: dict[str, Any] = explained[0]["Plan"]
    return plan


def steps(plan: dict[str, Any]) -> list[Any]:
    """What is done, by which index, to what."""
    names = [plan.get(name) for name in ("Node Type", "Index Name", "Relation Name")]
    return [*names, *(steps(each) for each in plan.get("Plans", ()))]


async def whole_tables(connection: Connection, sql: str, name: str) -> list[str] | None:
    """The growing tables of which its plan reads all; None for what has no plan."""
    try:
        count = len((await connection.prepare(sql)).get_parameters())
        await connection.execute(f"prepare {name} as {sql}")
        arguments = f"({', '.join(['null'] * count)})" if count else ""
        [[plan]] = await connection.fetch(f"explain (format json) execute {name}{arguments}")
    except asyncpg.PostgresError:
        return None
    found = []

    def look(node: Any) -> None:
        table, few = node.get("Relation Name"), node.get("Index Name") in OF_FEW
        if "Scan" in node["Node Type"] and table in TABLES and "Index Cond" not in node and not few:
            found.append(table)
        for each in node.get("Plans", ()):
            look(each)

    look(json.loads(plan)[0]["Plan"])
    return found


async def test_no_plan_that_is_made_for_empty_tables_reads_all_of_a_full_one(stage: OpenStage) -> None:
    """A plan is made once for each connection, and the first payout may be the one that it is made for."""
    async with company(stage) as house:
        sent = await sent_in_company(house)
        async with house.s.database.shared.acquire() as connection:
            plans = {sql: await whole_tables(connection, sql, f"planned_{number}") for number, sql in enumerate(sent)}
    assert not {sql: tables for sql, tables in plans.items() if tables}
    assert sum(tables is not None for tables in plans.values()) >= LEAST_SENT


async def test_nor_does_one_for_tables_that_were_analysed_while_they_were_empty(stage: OpenStage) -> None:
    """The planner then takes them for empty until they are analysed again. Of those that never were it expects more."""
    async with company(stage) as house:
        sent = await sent_in_company(house)
    # Few payouts have an earlier round.
    sent += [sql for where, sql in texts() if "payouts/earlier.py" in where]
    async with stage() as s, s.database.shared.acquire() as connection:
        await s.owner.execute("vacuum analyze")
        reading = [sql for sql in sent if "payouts." in sql or "payonce.effects" in sql]
        for_all = [(await lateral.known(connection, sql)).for_all for sql in reading]
        plans = {
            sql: await whole_tables(connection, sql, f"planned_{number}")
            for number, sql in enumerate([*reading, *filter(None, for_all)])
        }
    assert not {sql: tables for sql, tables in plans.items() if tables}
    assert sum(tables is not None for tables in plans.values()) >= LEAST_SENT
