"""Little programs over shared rows: what several runs leave in company is what some order of them would leave."""

import asyncio
import random
from collections.abc import Sequence
from itertools import permutations
from typing import Any, NamedTuple

import pytest

from payonce.engine.company.locks import Locks
from payonce.engine.database import Connection
from payonce.kit.outcomes import Retry
from payonce.testing import OpenStage
from tests.engine.company.company_stage import LOCKED, WRITE, Table, counted, open_table

ROWS = 3
WALKS, WALKS_FULL = 40, 600
LOCK_BOTH = "select id, n from rows where id = any($1::int[]) order by id for update"
BUMP = "update rows set n = (n * 2 + 1) % 10007 where id = $1 returning id, n"
BUMP_SOME = "update rows set n = (n * 2 + 1) % 10007 where id = $1"
MODULUS = 10_007


class Step(NamedTuple):
    kind: str
    row: int
    other: int
    by: int
    turns: int
    """Statements in between, so that runs get out of step."""


Program = Sequence[Step]


def drawn(draw: random.Random) -> list[Program]:
    return [[drawn_step(draw) for _ in range(draw.randint(1, 4))] for _ in range(draw.randint(2, 5))]


def drawn_step(draw: random.Random) -> Step:
    kinds = ("change", "bump some", "bump", "copy", "fail") if draw.random() < 0.3 else ("change", "bump", "mix")
    row, other = sorted(draw.sample(range(1, ROWS + 1), 2))
    return Step(draw.choice(kinds), row, other, draw.randint(2, 9), draw.randint(0, 2))


async def perform(program: Program, connection: Connection) -> None:
    for kind, row, other, by, turns in program:
        for turn in range(turns):
            await connection.fetch(f"select {turn}")
        match kind:
            case "change":
                [found] = await connection.fetch(LOCKED, row)
                await connection.fetch("select 'in between'")
                await connection.execute(WRITE, row, (found["n"] * by + 1) % MODULUS)
            case "bump":
                await connection.fetch(BUMP, row)
            case "bump some":
                await connection.execute(BUMP_SOME, row)
            case "mix":
                both = await connection.fetch(LOCK_BOTH, [row, other])
                total = sum(each["n"] for each in both)
                await connection.execute(WRITE, row, (total * by) % MODULUS)
                await connection.execute(WRITE, other, (total + by) % MODULUS)
            case "copy":
                [other_found] = await connection.fetch(LOCKED, other)
                [found] = await connection.fetch(LOCKED, row)
                await connection.execute(WRITE, row, (other_found["n"] * 3 + found["n"] + by) % MODULUS)
            case "fail":
                raise Retry("drawn")


def reckon(program: Program, rows: dict[int, int]) -> None:
    for kind, row, other, by, _ in program:
        match kind:
            case "change":
                rows[row] = (rows[row] * by + 1) % MODULUS
            case "bump" | "bump some":
                rows[row] = (rows[row] * 2 + 1) % MODULUS
            case "mix":
                total = rows[row] + rows[other]
                rows[row], rows[other] = (total * by) % MODULUS, (total + by) % MODULUS
            case "copy":
                rows[row] = (rows[other] * 3 + rows[row] + by) % MODULUS


def serial_ends(programs: Sequence[Program]) -> set[tuple[int, ...]]:
    ends = set()
    for order in permutations(programs):
        rows = dict.fromkeys(range(1, ROWS + 1), 1)
        for program in order:
            reckon(program, rows)
        ends.add(tuple(rows.values()))
    return ends


async def walk_all(table: Table, seeds: Sequence[int]) -> None:
    for seed in seeds:
        await walk(table, seed)


async def walk(table: Table, seed: int) -> None:
    programs = drawn(random.Random(seed))
    await table.s.owner.execute("update rows set n = 1")

    def body(program: Program) -> Any:
        return lambda connection: perform(program, connection)

    came_to = await asyncio.wait_for(table.together(*map(body, programs)), 30)
    done = [program for program, result in zip(programs, came_to, strict=True) if result is None]
    ended = tuple(await table.rows())
    assert ended in serial_ends(done), f"seed {seed}: {programs} came to {came_to} and left {ended}"


async def test_what_runs_leave_is_what_some_order_of_them_leaves(stage: OpenStage) -> None:
    async with open_table(stage, rows=ROWS, room_alone=1) as table:
        with counted() as count:
            await walk_all(table, range(WALKS))
    assert min(count.committed, count.parted) >= 5, "both ways are tried"


@pytest.mark.full
async def test_what_runs_leave_is_what_some_order_of_them_leaves_for_long(stage: OpenStage) -> None:
    async with open_table(stage, rows=ROWS, room_alone=1) as table:
        await walk_all(table, range(WALKS, WALKS_FULL))


async def test_a_lock_that_is_not_kept_is_found(stage: OpenStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Locks, "_holds", lambda *_: True)
    async with open_table(stage, rows=ROWS, room_alone=1) as table:
        with pytest.raises(AssertionError, match="seed"):
            await walk_all(table, range(WALKS))
