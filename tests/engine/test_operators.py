"""Console users: unreadable passwords, sessions that end, and a limit on guessing."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from payonce.engine.messages.transaction import Tx
from payonce.engine.operators import (
    LoginRefused,
    Person,
    Role,
    add_person,
    log_in,
    log_out,
    passwords,
    people,
    remove_person,
    session_status,
    set_password,
    set_role,
)
from payonce.engine.operators.login_limits import (
    ADDRESS_FAILURES_MAX,
    FAILURES_MAX,
    KNOWN_FOR_S,
    NAME_FAILURES_MAX,
    NAME_PAUSE_S,
    WINDOW_S,
    TooManyAttempts,
    count_attempt,
)
from payonce.engine.operators.sessions import ABSOLUTE_S, IDLE_S
from payonce.kit.outcomes import Invalid
from payonce.testing import OpenStage, Stage

PASSWORD = "correct horse battery"


async def add(stage: Stage, name: str = "ann", role: Role = Role.OPERATOR) -> None:
    async with stage.begin() as tx:
        await add_person(tx, name, role, PASSWORD, by="root")


async def enter(stage: Stage, name: str = "ann", password: str = PASSWORD, address: str = "192.0.2.1") -> str:
    return await log_in(stage.database, name, password, address)


async def test_a_password_opens_a_session_of_its_person(stage: OpenStage) -> None:
    async with stage() as s:
        await add(s)
        token = await enter(s, " Ann ")
        known = await session_status(s.read, token)
        assert known.has_people
        assert known.session is not None
        assert known.session.person == Person("ann", Role.OPERATOR)


async def test_a_hash_costs_a_guesser_a_tenth_of_a_second(
    cost_of_passwords: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passwords, "COST", cost_of_passwords)
    stored = await passwords.hash_password(PASSWORD)
    assert stored.startswith("scrypt$32768$8$1$")
    assert await passwords.is_password(PASSWORD, stored)
    assert not await passwords.is_password(f"{PASSWORD}!", stored)


async def test_neither_password_nor_token_is_in_the_database(stage: OpenStage) -> None:
    async with stage() as s:
        await add(s)
        token = await enter(s)
        for table in ("people", "sessions", "login_failures", "login_networks", "audit_log"):
            rows = [str(dict(row)) for row in await s.owner.fetch(f"select * from payonce.{table}")]
            assert not [row for row in rows if PASSWORD in row or token in row]


async def test_two_equal_passwords_have_different_hashes(stage: OpenStage) -> None:
    async with stage() as s:
        await add(s, "ann")
        await add(s, "bob")
        hashes = {row["password"] for row in await s.owner.fetch("select password from payonce.people")}
        assert len(hashes) == 2


@pytest.mark.parametrize("password", ["", "Correct horse battery", PASSWORD + " ", PASSWORD * 100])
async def test_a_wrong_password_and_an_unknown_name_get_the_same_answer(stage: OpenStage, password: str) -> None:
    async with stage() as s:
        await add(s)
        said = set()
        for name in ("ann", "nobody"):
            with pytest.raises(LoginRefused) as refused:
                await enter(s, name, password)
            said.add(str(refused.value))
        assert said == {"the name or the password is wrong"}


async def test_a_session_ends_after_rest(stage: OpenStage) -> None:
    async with stage() as s:
        await add(s)
        token = await enter(s)
        await s.clock.advance(IDLE_S - 1)
        assert (await session_status(s.read, token)).session is not None
        await s.clock.advance(IDLE_S - 1)
        assert (await session_status(s.read, token)).session is not None
        await s.clock.advance(IDLE_S + 1)
        assert (await session_status(s.read, token)).session is None


async def test_a_page_that_renews_itself_does_not_keep_its_session_alive(stage: OpenStage) -> None:
    async with stage() as s:
        await add(s)
        token = await enter(s)
        await s.clock.advance(IDLE_S - 60)
        assert (await session_status(s.read, token, active=False)).session is not None
        await s.clock.advance(120)
        assert (await session_status(s.read, token, active=False)).session is None


async def test_a_session_ends_by_age_however_busy(stage: OpenStage) -> None:
    async with stage() as s:
        await add(s)
        token = await enter(s)
        for _ in range(ABSOLUTE_S // 3_600 - 1):
            await s.clock.advance(3_600)
            assert (await session_status(s.read, token)).session is not None
        await s.clock.advance(3_601)
        assert (await session_status(s.read, token)).session is None


async def test_logout_a_new_password_and_removal_end_sessions(stage: OpenStage) -> None:
    async with stage() as s:
        await add(s)
        left, changed = await enter(s), await enter(s)
        await log_out(s.database, left)
        assert (await session_status(s.read, left)).session is None
        assert (await session_status(s.read, changed)).session is not None
        async with s.begin() as tx:
            await set_password(tx, "ann", "another long password", by="root")
        assert (await session_status(s.read, changed)).session is None
        removed = await enter(s, password="another long password")
        async with s.begin() as tx:
            await remove_person(tx, "ann", by="root")
        assert (await session_status(s.read, removed)).session is None
        assert not (await session_status(s.read, removed)).has_people


async def test_a_role_changes_what_an_open_session_may_do(stage: OpenStage) -> None:
    async with stage() as s:
        await add(s)
        token = await enter(s)
        async with s.begin() as tx:
            await set_role(tx, "ann", Role.VIEWER, by="root")
        known = await session_status(s.read, token)
        assert known.session is not None
        assert not known.session.person.role.may(Role.OPERATOR)


async def test_guessing_is_bounded_and_the_right_password_waits_as_well(stage: OpenStage) -> None:
    async with stage() as s:
        await add(s)
        for _ in range(FAILURES_MAX):
            with pytest.raises(LoginRefused, match="wrong"):
                await enter(s, password="not the password")
        with pytest.raises(LoginRefused, match="too many"):
            await enter(s)
        # Other people, and the same person from elsewhere, are not delayed.
        assert await enter(s, address="192.0.2.2")
        await s.clock.advance(WINDOW_S + 1)
        assert await enter(s)


async def test_many_guesses_at_once_are_counted_before_they_are_judged(stage: OpenStage) -> None:
    async with stage() as s:
        await add(s)
        ends = await asyncio.gather(
            *(enter(s, password="not the password") for _ in range(FAILURES_MAX * 3)), return_exceptions=True
        )
        judged = [end for end in ends if isinstance(end, LoginRefused) and not end.too_many]
        assert len(judged) <= FAILURES_MAX
        assert all(isinstance(end, LoginRefused) for end in ends)


async def test_one_address_may_not_try_many_names(stage: OpenStage) -> None:
    async with stage() as s:
        await add(s)
        await s.database.work.execute(
            "insert into payonce.login_failures (name, address) select 'name' || n, '192.0.2.1' "
            "from generate_series(1, $1::int) n",
            ADDRESS_FAILURES_MAX,
        )
        with pytest.raises(LoginRefused, match="from this address; wait 15 minutes, or log in from another one"):
            await enter(s)


async def test_failed_logins_at_another_endpoint_do_not_lock_operators_out(stage: OpenStage) -> None:
    async with stage() as s:
        await add(s)
        for number in range(ADDRESS_FAILURES_MAX):
            await count_attempt(s.database, f"customer {number}", "192.0.2.1", "shop")
        with pytest.raises(TooManyAttempts):
            await count_attempt(s.database, "one more", "192.0.2.1", "shop")
        assert await enter(s)


async def test_failed_logins_of_others_do_not_lock_out_who_has_logged_in_from_there(stage: OpenStage) -> None:
    async with stage() as s:
        await add(s)
        await add(s, "bob")
        await enter(s)
        for number in range(ADDRESS_FAILURES_MAX):
            await count_attempt(s.database, f"name {number}", "192.0.2.1")
        with pytest.raises(LoginRefused, match="too many"):
            await enter(s, "bob")
        assert await enter(s)
        # Only guesses at this very account count against it.
        for _ in range(FAILURES_MAX):
            with pytest.raises(LoginRefused, match="wrong"):
                await enter(s, password="not the password")
        with pytest.raises(LoginRefused, match="too many"):
            await enter(s)


async def test_an_account_is_known_at_a_network_for_a_month(stage: OpenStage) -> None:
    async with stage() as s:
        await add(s)
        await enter(s)
        await s.clock.advance(KNOWN_FOR_S + 1)
        for number in range(ADDRESS_FAILURES_MAX):
            await count_attempt(s.database, f"name {number}", "192.0.2.1")
        with pytest.raises(LoginRefused, match="too many"):
            await enter(s)
        await enter(s, address="192.0.2.9")
        assert await s.owner.fetchval("select count(*) from payonce.login_networks") == 1


async def test_a_new_password_ends_the_wait(stage: OpenStage) -> None:
    """As the refusal says."""
    async with stage() as s:
        await add(s)
        for _ in range(FAILURES_MAX):
            with pytest.raises(LoginRefused, match="wrong"):
                await enter(s, password="not the password")
        with pytest.raises(LoginRefused, match="set a new password with: payonce users passwd"):
            await enter(s)
        async with s.begin() as tx:
            await set_password(tx, "ann", "another long password", by="root")
        assert await enter(s, password="another long password")


async def test_one_ipv6_network_is_one_address(stage: OpenStage) -> None:
    async with stage() as s:
        await add(s)
        for number in range(FAILURES_MAX):
            with pytest.raises(LoginRefused, match="wrong"):
                await enter(s, password="not the password", address=f"2001:db8:1:2::{number:x}")
        with pytest.raises(LoginRefused, match="too many"):
            await enter(s, address="2001:db8:1:2:ffff::1")
        assert await enter(s, address="2001:db8:1:3::1")


async def test_a_name_that_is_guessed_from_everywhere_is_judged_now_and_then(stage: OpenStage) -> None:
    async with stage() as s:
        await add(s)
        await add(s, "bob")
        with pytest.raises(LoginRefused, match="wrong"):
            await enter(s, password="not the password", address="198.51.100.0")
        await s.database.work.execute(
            "insert into payonce.login_failures (name, address) select name, '198.51.100.' || n "
            "from payonce.login_failures, generate_series(2, $1::int) n",
            NAME_FAILURES_MAX,
        )
        with pytest.raises(LoginRefused, match=f"wait {NAME_PAUSE_S} seconds"):
            await enter(s)
        assert await enter(s, "bob")
        # Not locked out, however long it continues.
        await s.clock.advance(NAME_PAUSE_S + 1)
        assert await enter(s)


@pytest.mark.parametrize(("endpoint", "is_known"), [("shop", False), ("console", True)])
async def test_guesses_at_a_name_elsewhere_do_not_delay_its_owner(
    stage: OpenStage, endpoint: str, is_known: bool
) -> None:
    """At another endpoint, or from other networks than the one where its owner has logged in."""
    async with stage() as s:
        await add(s)
        if is_known:
            await enter(s)
        await count_attempt(s.database, "ann", "198.51.100.0", endpoint)
        await s.database.work.execute(
            "insert into payonce.login_failures (name, address) select name, address || n "
            "from payonce.login_failures, generate_series(1, $1::int) n",
            NAME_FAILURES_MAX,
        )
        with pytest.raises(TooManyAttempts):
            await count_attempt(s.database, "ann", "198.51.100.0", endpoint)
        assert await enter(s)


async def test_a_name_that_nobody_has_is_kept_nowhere(stage: OpenStage) -> None:
    """It may be a password, typed into the wrong field."""
    async with stage() as s:
        await add(s)
        for name in ("hunter2 hunter2", "ann"):
            with pytest.raises(LoginRefused):
                await enter(s, name, "not the password")
        for table in ("login_failures", "audit_log"):
            rows = [str(dict(row)) for row in await s.owner.fetch(f"select * from payonce.{table}")]
            assert rows
            assert not [row for row in rows if "hunter2" in row]
        noted = await s.owner.fetch("select actor, reference from payonce.audit_log where location = 'console.login'")
        assert [tuple(row) for row in noted] == [("nobody", "unknown name"), ("ann", "ann")]


async def test_right_logins_are_no_failures(stage: OpenStage) -> None:
    async with stage() as s:
        await add(s)
        for _ in range(FAILURES_MAX + 2):
            assert await enter(s)


async def test_who_is_sent_away_because_too_many_come_made_no_guess(
    stage: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stage() as s:
        await add(s)
        with monkeypatch.context() as crowd:
            crowd.setattr(passwords, "WAITING_MAX", -passwords.AT_ONCE)
            for _ in range(FAILURES_MAX + 1):
                with pytest.raises(LoginRefused, match="too many passwords are being checked") as refused:
                    await enter(s)
                assert refused.value.too_many
        assert await enter(s)


@pytest.mark.parametrize("name", ["", "  ", "-ann", "a b", "ann\x00", "x" * 101, "operator@localhost", "ännchen"])
async def test_a_name_that_could_be_mistaken_is_refused(stage: OpenStage, name: str) -> None:
    async with stage() as s:
        with pytest.raises(Invalid):
            await add(s, name)
        assert await people(s.read) == []


async def test_a_name_is_given_once_whatever_its_case(stage: OpenStage) -> None:
    async with stage() as s:
        await add(s, "ann")
        with pytest.raises(Invalid, match="already exists"):
            await add(s, "ANN")


@pytest.mark.parametrize("password", ["", "short", "x" * 11, "x" * 1_001])
async def test_a_password_that_is_too_short_or_endless_is_refused(stage: OpenStage, password: str) -> None:
    async with stage() as s:
        with pytest.raises(Invalid, match="characters"):
            async with s.begin() as tx:
                await add_person(tx, "ann", Role.VIEWER, password, by="root")


async def test_every_change_of_people_is_in_the_audit_log_with_its_actor(stage: OpenStage) -> None:
    async with stage() as s:
        await add(s)
        async with s.begin() as tx:
            await set_role(tx, "ann", Role.APPROVER, by="boss")
            await set_password(tx, "ann", "another long password", by="boss")
            await remove_person(tx, "ann", by="boss")
        rows = await s.read.fetch("select actor, text from payonce.audit_log where reference = 'ann' order by id")
        assert [(row["actor"], row["text"]) for row in rows] == [
            ("root", "added as operator"),
            ("boss", "is now approver"),
            ("boss", "password changed"),
            ("boss", "removed"),
        ]


async def test_unknown_people_are_named_with_those_who_are_known(stage: OpenStage) -> None:
    async with stage() as s:
        await add(s)
        changes: list[Callable[[Tx], Awaitable[None]]] = [
            lambda tx: set_role(tx, "bob", Role.VIEWER, by="root"),
            lambda tx: set_password(tx, "bob", PASSWORD, by="root"),
            lambda tx: remove_person(tx, "bob", by="root"),
        ]
        for change in changes:
            with pytest.raises(Invalid, match="known are: ann"):
                async with s.begin() as tx:
                    await change(tx)


def test_each_role_may_do_what_those_below_it_may() -> None:
    assert [[one.may(other) for other in Role] for one in Role] == [
        [True, False, False],
        [True, True, False],
        [True, True, True],
    ]
