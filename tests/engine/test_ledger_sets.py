"""Many postings in one call: written as one after the other, or refused with the same error."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import asyncpg
import pytest

from payonce.engine.ledger import Account, Line, Overdrawn, Posting, PostingId, Reference, guard, moved, post
from payonce.kit.outcomes import Invalid, Unavailable
from payonce.testing import OpenStage, Stage
from tests.engine.ledger_books import (
    CLIENTS,
    ETH,
    FEES,
    ORDER,
    WALLET,
    counts,
    eth,
    findings,
    held,
    lines,
    plant,
    posted,
    transfer,
    usdt,
)
from tests.engine.ledger_sets import POST_ALL, arguments, set_posted, waiting, write_set

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
GUARDED = ("budgets/a", "budgets/b", "budgets/c")
DEADLOCK = "deadlock detected"


async def guarded(s: Stage, *paths: str, minimum: int = 0) -> None:
    async with s.database.transaction() as connection:
        for path in paths:
            await guard(connection, Account(path, ETH), eth(minimum))


async def test_each_posting_has_its_own_words_lines_and_id(stage: OpenStage) -> None:
    async with stage() as s:
        await s.clock.freeze(NOON)
        swap = (*moved(usdt(5), CLIENTS, WALLET), Line(WALLET, eth(-(10**60))), Line(FEES, eth(10**60)))
        # Keys in another order than their postings: ids follow the postings.
        postings = [
            Posting("z", ORDER, swap, "bought", trace_id="t-1"),
            Posting("a", Reference("refund", "18"), moved(eth(7), WALLET, CLIENTS)),
        ]
        first, second = await set_posted(s, *postings)
        assert first < second
        assert await lines(s) == [
            (first, CLIENTS, "USDT", -5),
            (first, WALLET, "USDT", 5),
            (first, WALLET, "ETH", -(10**60)),
            (first, FEES, "ETH", 10**60),
            (second, WALLET, "ETH", -7),
            (second, CLIENTS, "ETH", 7),
        ]
        assert [tuple(row) for row in await s.owner.fetch("select * from payonce.postings order by id")] == [
            (first, "z", "payout", "17", "t-1", "bought", NOON),
            (second, "a", "refund", "18", None, "", NOON),
        ]
        assert await findings(s) == {}


async def test_what_was_written_before_or_comes_twice_is_written_once(stage: OpenStage) -> None:
    async with stage() as s:
        before = await posted(s, transfer("before", 5))
        told_differently = replace(transfer("before", 5), lines=transfer("before", 5).lines[::-1], text="again")
        ids = await set_posted(s, transfer("a", 1), told_differently, transfer("b", 2), transfer("a", 1))
        assert ids[1] == before
        assert ids[0] == ids[3] != ids[2]
        assert await set_posted(s, transfer("b", 2), transfer("a", 1)) == [ids[2], ids[0]]
        assert await counts(s) == (3, 6, 2)
        assert await held(s, WALLET) == 8
        assert await findings(s) == {}


@pytest.mark.parametrize(
    "other",
    [
        transfer("a", 6),
        transfer("a", 5, FEES, WALLET),
        Posting("a", ORDER, (*transfer("a", 5).lines, *moved(usdt(1), CLIENTS, WALLET))),
        replace(transfer("a", 5), reference=Reference("payout", "18")),
    ],
)
@pytest.mark.parametrize("before", [True, False], ids=["of before", "of the same call"])
async def test_a_key_of_another_posting_refuses_all(stage: OpenStage, other: Posting, before: bool) -> None:
    async with stage() as s:
        if before:
            await posted(s, transfer("a", 5))
        postings = [transfer("fresh", 1), *([] if before else [transfer("a", 5)]), other]
        with pytest.raises(Invalid, match=r"key a belongs to posting \d+ of payout 17"):
            await set_posted(s, *postings)
        assert await counts(s) == ((1, 2, 2) if before else (0, 0, 0))


async def refusal(work: Awaitable[Any]) -> tuple[Any, ...]:
    try:
        await work
    except (asyncpg.PostgresError, Invalid, Overdrawn, Unavailable) as error:
        said = error if isinstance(error, asyncpg.PostgresError) else error.__cause__
        assert isinstance(said, asyncpg.PostgresError)
        return said.sqlstate, str(said), said.detail
    raise AssertionError("it was not refused")


@pytest.mark.parametrize(
    "wrong",
    [
        {"minors": [5, -5, 7, -8]},
        {"minors": [5, -7, 7, -5]},
        {"minors": [5, -5, 0, 0]},
        {"minors": ["0.5", "-0.5", 7, -7]},
        {"minors": ["NaN", "NaN", 7, -7]},
        {"minors": ["Infinity", "-Infinity", 7, -7]},
        {"minors": [5, None, 7, -7]},
        {"minors": [10**78, -(10**78), 7, -7]},
        {"assets": ["ETH", "USDT"]},
        {"exponents": [18, 8]},
        {"postings": [1, 1, 1, 2], "minors": [5, -3, -2, 7]},
        {"postings": [1] * 1002 + [2] * 2, "accounts": [1, 2] * 502, "minors": [5, -5] * 502},
    ],
)
async def test_what_is_refused_of_one_is_refused_among_others_in_the_same_words(
    stage: OpenStage, wrong: dict[str, list[Any]]
) -> None:
    async with stage() as s:
        given = arguments(**wrong)
        given[10] = [None if each is None else str(each) for each in given[10]]
        keys, kinds, references, traces, words, paths, assets, exponents, of, at, minors = given

        async def one_by_one() -> None:
            async with s.database.transaction() as connection:
                for number in (1, 2):
                    places = [place for place, each in enumerate(of) if each == number]
                    accounts = [at[place] - 1 for place in places]
                    n = number - 1
                    await connection.fetchval(
                        "select payonce.post($1, $2, $3, $4, $5, $6, $7, $8, $9::text[]::numeric[])",
                        keys[n],
                        kinds[n],
                        references[n],
                        traces[n],
                        words[n],
                        [paths[each] for each in accounts],
                        [assets[each] for each in accounts],
                        [exponents[each] for each in accounts],
                        [minors[place] for place in places],
                    )

        of_set = await refusal(s.database.work.fetchval(POST_ALL.replace("$11", "$11::text[]::numeric[]"), *given))
        assert of_set == await refusal(one_by_one())
        assert of_set[0] == "LG001"
        assert await counts(s) == (0, 0, 0)


ODD: list[dict[str, Any]] = [
    # Arrays of another shape: a place would mean one asset to the sums and another to the accounts.
    {"assets": [["ETH"], ["USDT"]]},
    {"exponents": [[18], [8]]},
    {"paths": [["x"], ["y"]]},
    {"keys": [["a"], ["b"]]},
    {"postings": [[1, 1], [2, 2]]},
    {"assets": ["ETH"]},
    {"exponents": [18, 18, 18]},
    {"paths": ["x"]},
    {"kinds": ["payout"]},
    {"references": ["1"]},
    {"traces": [None]},
    {"words": ["", "", ""]},
    {"accounts": [1, 2, 1]},
    {"minors": [5, -5]},
    # Lines of no posting or no account.
    {"postings": [1, 1, 3, 3]},
    {"postings": [1, 1, None, None]},
    {"postings": [0, 0, 1, 1]},
    {"accounts": [1, 2, 1, 3]},
    {"accounts": [1, 2, 1, None]},
    {"accounts": [1, 2, 0, 0]},
    {"postings": [1, 1, 1, 1]},
    {name: [] for name in ("keys", "kinds", "references", "traces", "words", "postings", "accounts", "minors")},
    {"keys": None},
    {"paths": None},
    {"minors": None},
]


@pytest.mark.parametrize("odd", ODD, ids=str)
async def test_arrays_that_do_not_fit_together_are_refused(stage: OpenStage, odd: dict[str, Any]) -> None:
    async with stage() as s:
        assert (await refusal(s.database.work.fetchval(POST_ALL, *arguments(**odd))))[0] == "LG001"
        assert await counts(s) == (0, 0, 0)


UNCHECKED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "shapes": (
        "array_dims(assets), array_dims(exponents)",
        "by_account, by_account",
        {"assets": [["ETH"], ["USDT"]]},
    ),
    "sums": ("bool_and(fits and total = 0)", "bool_and(fits)", {"minors": [5, -5, 7, -8]}),
    "amounts": ("n.minor = trunc(n.minor)", "true", {"minors": ["0.5", "-0.5", "7", "-7"]}),
    "the number of lines": (
        "lines between 2 and 1000",
        "true",
        {"postings": [1] * 1002 + [2] * 2, "accounts": [1, 2] * 502, "minors": [5, -5] * 502},
    ),
    "the postings of lines": ("n.posting between 1 and cardinality(keys)", "true", {"postings": [1, 1, 3, 3]}),
    "the accounts of lines": ("n.account between 1 and cardinality(paths)", "true", {"accounts": [3, 3, 1, 2]}),
    "the number of postings": ("count(*) = cardinality(keys)", "true", {"postings": [1, 1, 1, 1]}),
}
"""The check, the weakened check, and a case that only this check refuses."""


@pytest.mark.parametrize("what", UNCHECKED)
async def test_a_check_that_is_missing_is_missed(stage: OpenStage, what: str) -> None:
    sound, broken, odd = UNCHECKED[what]
    given = arguments(**odd)
    given[10] = [str(each) for each in given[10]]
    statement = POST_ALL.replace("$11", "$11::text[]::numeric[]")
    async with stage() as s:
        assert (await refusal(s.database.work.fetchval(statement, *given)))[0] == "LG001"
        await plant(s.owner, "check_postings", sound, broken)
        try:
            await s.database.work.fetchval(statement, *given)
        except asyncpg.PostgresError as error:
            assert error.sqlstate != "LG001", "it is refused all the same"  # noqa: PT017


async def test_an_array_that_does_not_count_from_one_is_refused(stage: OpenStage) -> None:
    async with stage() as s:
        shifted = POST_ALL.replace("$7", "('[0:1]=' || $7::text[]::text)::text[]")
        assert (await refusal(s.database.work.fetchval(shifted, *arguments(assets=["ETH", "ETH"]))))[0] == "LG001"


@pytest.mark.parametrize(
    "broken",
    [{"paths": ["x", "y/"]}, {"paths": ["x", None]}, {"keys": ["a", None]}, {"keys": ["a", ""]}, {"words": ["", None]}],
    ids=str,
)
async def test_what_the_tables_refuse_is_refused(stage: OpenStage, broken: dict[str, Any]) -> None:
    async with stage() as s:
        assert (await refusal(s.database.work.fetchval(POST_ALL, *arguments(**broken))))[0] in ("23502", "23514")
        assert await counts(s) == (0, 0, 0)


async def test_guarded_balances_are_judged_in_the_order_given(stage: OpenStage) -> None:
    spend, fill = transfer("spend", 5, GUARDED[0], WALLET), transfer("fill", 5, CLIENTS, GUARDED[0])
    async with stage() as s:
        await guarded(s, GUARDED[0])
        in_set = await refusal(set_posted(s, spend, fill))
        with pytest.raises(Overdrawn) as alone:
            await posted(s, spend)
        cause = alone.value.__cause__
        assert isinstance(cause, asyncpg.PostgresError)
        assert in_set == (cause.sqlstate, str(cause), cause.detail)
        assert in_set[0] == "LG003"
        assert await counts(s) == (0, 0, 1)
        assert len(set(await set_posted(s, fill, spend))) == 2
        assert await held(s, GUARDED[0]) == 0
        assert await findings(s) == {}


async def test_a_repeated_posting_does_not_count_against_the_guard(stage: OpenStage) -> None:
    spend, fill = transfer("spend", 5, GUARDED[0], WALLET), transfer("fill", 5, CLIENTS, GUARDED[0])
    async with stage() as s:
        await guarded(s, GUARDED[0])
        first = await set_posted(s, fill, spend, spend, fill)
        again = await set_posted(s, spend, fill, transfer("more", 1))
        assert again[:2] == [first[1], first[0]] == [first[2], first[3]]
        assert await held(s, GUARDED[0]) == 0
        assert await findings(s) == {}


@pytest.mark.parametrize("looks", [True, False])
async def test_a_guard_that_comes_while_its_account_is_opened_counts(stage: OpenStage, looks: bool) -> None:
    spends = [transfer(f"spend {path}", 5, path, WALLET) for path in GUARDED[:2]]
    async with stage() as s:
        if not looks:
            await plant(s.owner, "post_all", "touches_guarded := true;", "")
        async with s.database.transaction() as connection:
            await guard(connection, Account(GUARDED[1], ETH))
            spending = asyncio.create_task(set_posted(s, *spends))
            await waiting(s, 1)
        if looks:
            assert (await refusal(spending))[0] == "LG003"
        else:
            await spending
        assert bool(await findings(s)) is not looks


async def test_books_of_a_younger_server_are_refused(stage: OpenStage) -> None:
    async with stage() as s:
        await s.owner.execute("update payonce.ledger_horizon set horizon = '9000000000'")
        in_set = await refusal(set_posted(s, transfer("a", 1), transfer("b", 1)))
        with pytest.raises(Unavailable) as alone:
            await posted(s, transfer("a", 1))
        assert in_set[:2] == ("LG004", str(alone.value))


async def test_a_search_path_full_of_traps_does_not_lead_it_astray(stage: OpenStage) -> None:
    async with stage() as s, s.database.transaction() as connection:
        for table in ("posting_lines", "accounts", "postings"):
            await connection.execute(f"create temp table {table} (like payonce.{table})")
        await connection.execute("set local search_path = pg_temp, payonce")
        await write_set(connection, transfer("a", 5), transfer("b'; drop table payonce.postings; --", 5))
        assert await connection.fetchval("select count(*) from payonce.posting_lines") == 4


async def two_sets(s: Stage, held_back: Posting, first: list[Posting], second: list[Posting]) -> list[Any]:
    """The first set waits for a lock, the second is written meanwhile; returns the results of both."""
    async with s.database.work.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await post(connection, held_back)
        one = asyncio.create_task(set_posted(s, *first))
        await waiting(s, 1)
        other = asyncio.create_task(set_posted(s, *second))
        await waiting(s, 2)
        await transaction.rollback()
    return list(await asyncio.gather(one, other, return_exceptions=True))


async def check_keys_in_any_order(s: Stage) -> None:
    one, two, three = (transfer(key, 1) for key in "123")
    await posted(s, transfer("so that accounts are open", 1))
    came_to = await two_sets(s, two, [one, two, three], [three, one])
    assert not [str(each) for each in came_to if not isinstance(each, list)]
    assert came_to[1] == [came_to[0][2], came_to[0][0]]


async def check_guarded_in_any_order(s: Stage) -> None:
    await guarded(s, *GUARDED, minimum=-100)
    first = [transfer(f"first {path}", 1, path, WALLET) for path in GUARDED]
    second = [transfer(f"second {path}", 1, path, WALLET) for path in (GUARDED[2], GUARDED[0])]
    await posted(s, transfer("so that accounts are open", 1))
    came_to = await two_sets(s, transfer("held back", 1, GUARDED[1], WALLET), first, second)
    assert not [str(each) for each in came_to if not isinstance(each, list)]
    assert await findings(s) == {}


IN_ORDER: dict[str, tuple[Callable[[Stage], Awaitable[None]], str, str]] = {
    "keys": (check_keys_in_any_order, 'order by n.key collate "C", n.id', "order by n.id"),
    "guarded balances": (
        check_guarded_in_any_order,
        "perform from payonce.guarded_balances where account_id = any(accounts) order by account_id for update;",
        "",
    ),
}
"""A lock, and the safeguard that it needs."""


@pytest.mark.parametrize("what", IN_ORDER)
async def test_sets_wait_for_each_other_and_not_in_a_circle(stage: OpenStage, what: str) -> None:
    async with stage() as s:
        await IN_ORDER[what][0](s)


@pytest.mark.parametrize("what", IN_ORDER)
async def test_without_an_order_they_wait_in_a_circle(stage: OpenStage, what: str) -> None:
    check, *safeguard = IN_ORDER[what]
    async with stage() as s:
        await plant(s.owner, "post_all", *safeguard)
        with pytest.raises(AssertionError, match=DEADLOCK):
            await check(s)


async def test_the_same_sets_from_many_at_once_are_written_once(stage: OpenStage) -> None:
    there = [transfer(f"{number}", 1, f"from/{number}", f"to/{number}") for number in range(8)]
    async with stage() as s:
        came_to: list[list[PostingId]] = await asyncio.gather(
            *(set_posted(s, *(there if number % 2 else there[::-1])) for number in range(10))
        )
        assert len({tuple(sorted(ids)) for ids in came_to}) == 1
        assert await counts(s) == (8, 16, 16)
        assert await findings(s) == {}
