"""Random postings, repeated, failing, interrupted and concurrent: the ledger agrees with a model and never loses a
unit."""

import asyncio
from collections import Counter
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any, ClassVar

import asyncpg
import pytest
import uvloop
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from payonce.engine.ledger import (
    Account,
    Line,
    Overdrawn,
    Posting,
    PostingId,
    Reference,
    audit_ledger,
    balance,
    guard,
    post,
    snapshot_balances,
    trial_balance,
)
from payonce.engine.messages.transaction import Reader
from payonce.kit.ids import new_id
from payonce.kit.money import Amount, Asset
from payonce.kit.outcomes import Invalid
from payonce.testing import ScratchServer, Stage, open_stage
from tests.engine.ledger_books import plant

EXAMPLES, EXAMPLES_FULL = 25, 600
STEPS = 20
ASSETS = (Asset("ETH", 18), Asset("ETH", 8), Asset("USDT", 6))
PATHS = ("wallet", "clients", "fees", "budget")
GUARDED = "budget"
MINORS = st.integers(-5, 5) | st.integers(-(10**70), 10**70)
Movements = list[tuple[str, Asset, int]]
Planted = tuple[str, str, str]
"""A database function, the text to be replaced, and its replacement."""

movements = st.lists(
    st.tuples(st.sampled_from(PATHS), st.sampled_from(ASSETS), MINORS.filter(bool)), min_size=1, max_size=5
)
keys = st.sampled_from("abcdefgh")


class Books:
    """The model: postings by key, and nothing but addition."""

    def __init__(self) -> None:
        self.posted: dict[str, tuple[PostingId, Posting]] = {}

    def balance(self, account: Account) -> int:
        return sum(
            line.amount.minor
            for _, posting in self.posted.values()
            for line in posting.lines
            if (line.path, line.amount.asset) == (account.path, account.asset)
        )

    def overdrawn_by(self, posting: Posting) -> bool:
        changes: Counter[Account] = Counter()
        for line in posting.lines:
            if line.path.endswith(GUARDED):
                changes[Account(line.path, line.amount.asset)] += line.amount.minor
        return any(change < 0 and self.balance(account) + change < 0 for account, change in changes.items())

    def conflicts(self, posting: Posting) -> bool:
        return posting.key in self.posted and multiset(self.posted[posting.key][1]) != multiset(posting)

    def accept(self, posting: Posting, posting_id: PostingId) -> None:
        assert not self.conflicts(posting)
        assert self.posted.setdefault(posting.key, (posting_id, posting))[0] == posting_id


def multiset(posting: Posting) -> Counter[Line]:
    return Counter(posting.lines)


class Comparison(RuleBasedStateMachine):
    """Each run has accounts and keys of its own in one database: the audit reads all of them."""

    stage: ClassVar[Stage]
    runner: ClassVar[asyncio.Runner]

    def __init__(self) -> None:
        super().__init__()
        self.name = f"{new_id()}"
        self.books = Books()
        self.accounts = [Account(f"{self.name}/{path}", asset) for path in PATHS for asset in ASSETS]
        self.do(self.guard())

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(work)

    async def guard(self) -> None:
        async with self.stage.database.transaction() as connection:
            for account in self.accounts:
                if account.path.endswith(GUARDED):
                    await guard(connection, account)

    async def posted(self, *postings: Posting) -> list[PostingId]:
        async with self.stage.database.transaction() as connection:
            return [await post(connection, posting) for posting in postings]

    def posting(self, key: str, drawn: Movements) -> Posting:
        """The movements drawn, and per asset the line that balances them."""
        lines = [Line(f"{self.name}/{path}", Amount(minor, asset)) for path, asset, minor in drawn]
        for asset in ASSETS:
            if missing := -sum(minor for _, of, minor in drawn if of == asset):
                lines.append(Line(f"{self.name}/wallet", Amount(missing, asset)))
        return Posting(f"{self.name}/{key}", Reference("model", self.name), tuple(lines))

    @rule(key=keys, drawn=movements)
    def post_one(self, key: str, drawn: Movements) -> None:
        posting = self.posting(key, drawn)
        known = posting.key in self.books.posted
        if self.books.conflicts(posting):
            with pytest.raises(Invalid, match="belongs to posting"):
                self.do(self.posted(posting))
        elif not known and self.books.overdrawn_by(posting):
            with pytest.raises(Overdrawn):
                self.do(self.posted(posting))
        else:
            [posting_id] = self.do(self.posted(posting))
            self.books.accept(posting, posting_id)

    @rule(drawn=st.lists(st.tuples(keys, movements), min_size=2, max_size=6))
    def post_at_once(self, drawn: list[tuple[str, Movements]]) -> None:
        """Which of several conflicting postings wins is open; that only the winners count is not."""
        postings = [self.posting(key, each) for key, each in drawn]

        async def all_at_once() -> list[Any]:
            return await asyncio.gather(*(self.posted(each) for each in postings), return_exceptions=True)

        for posting, answer in zip(postings, self.do(all_at_once()), strict=True):
            if isinstance(answer, list):
                self.books.accept(posting, answer[0])
            else:
                assert isinstance(answer, Invalid), answer

    @rule()
    def repeat(self) -> None:
        ids, postings = zip(*self.books.posted.values(), strict=True) if self.books.posted else ((), ())
        assert self.do(self.posted(*postings)) == list(ids)

    @rule(key=keys, drawn=movements)
    def break_off(self, key: str, drawn: Movements) -> None:
        async def broken_off(posting: Posting) -> None:
            async with self.stage.database.transaction() as connection:
                await post(connection, posting)
                await connection.execute("select 1 / 0")

        with suppress(Invalid, asyncpg.DivisionByZeroError):
            self.do(broken_off(self.posting(key, drawn)))

    @rule(key=keys, drawn=movements.filter(lambda drawn: len(drawn) > 1))
    def send_unbalanced(self, key: str, drawn: Movements) -> None:
        """Bypasses our own checks and calls the function."""
        totals: Counter[Asset] = Counter()
        for _, asset, minor in drawn:
            totals[asset] += minor
        if not any(totals.values()):
            return
        with pytest.raises(asyncpg.PostgresError, match="do not add up to zero"):
            self.do(
                self.stage.database.work.fetchval(
                    "select payonce.post($1, 'model', $2, null, '', $3, $4, $5, $6)",
                    f"{self.name}/{key}",
                    self.name,
                    [f"{self.name}/{path}" for path, _, _ in drawn],
                    [asset.code for _, asset, _ in drawn],
                    [asset.exponent for _, asset, _ in drawn],
                    [minor for _, _, minor in drawn],
                )
            )

    @rule()
    def take_snapshots(self) -> None:
        self.do(snapshot_balances(self.stage.database, lines_wanted=1))

    @invariant()
    def the_books_agree_with_the_model(self) -> None:
        read = Reader(self.stage.database)
        for account in self.accounts:
            expected = self.books.balance(account)
            assert self.do(balance(read, account)).minor == expected
            assert expected >= 0 or not account.path.endswith(GUARDED)
        assert not any(self.do(trial_balance(read)).values())
        assert self.do(audit_ledger(read)) == []


def compare(server: ScratchServer, examples: int, phases: Sequence[Phase], planted: Planted | None = None) -> None:
    profile = settings(
        max_examples=examples,
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        phases=phases,
        derandomize=Phase.shrink not in phases,
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    with server.lent() as scratch, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        opening = open_stage(scratch)
        Comparison.runner = runner
        Comparison.stage = runner.run(opening.__aenter__())
        try:
            if planted is not None:
                runner.run(plant(Comparison.stage.owner, *planted))
            run_state_machine_as_test(Comparison, settings=profile)
        finally:
            runner.run(opening.__aexit__(None, None, None))


def test_no_sequence_of_calls_breaks_the_books(postgres: ScratchServer) -> None:
    compare(postgres, EXAMPLES, [Phase.generate])


@pytest.mark.full
@pytest.mark.timeout(1_800)
def test_no_long_sequence_of_calls_breaks_the_books(postgres: ScratchServer) -> None:
    compare(postgres, EXAMPLES_FULL, [Phase.generate, Phase.shrink])


PLANTED: dict[str, Planted] = {
    "other lines pass as the same": ("post", "raise exception 'key %", "raise notice 'key %"),
    "sums are not checked": ("check_lines", "excess is not null", "false"),
    "limits are not checked": ("move_guarded", "if moved.minor < 0 and", "if false and moved.minor < 0 and"),
    "guarded balances stand still": ("move_guarded", "balance + moved.minor where", "balance where"),
    "snapshots begin anew": ("snapshot_accounts", "coalesce(latest.balance, 0) + added", "added"),
}


# A damaged ledger stays damaged, so the failing run fails earlier when repeated: that is the meaning of Flaky here.
FOUND = (AssertionError, Invalid, asyncpg.PostgresError, pytest.fail.Exception, Flaky)


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(postgres: ScratchServer, bug: str) -> None:
    with pytest.raises(FOUND):
        compare(postgres, EXAMPLES, [Phase.generate], PLANTED[bug])
