"""The explorer finds injected bugs, and reports crossings it did not reach."""

import os
from dataclasses import replace

import pytest

from payonce.engine.ledger.model import Reads
from payonce.engine.messages.work import Work, handles
from payonce.kit.outcomes import Invalid
from payonce.testing import ScratchServer
from payonce.testing.crash import (
    ABLATIONS,
    BUILT_IN,
    PROCESS_MODES,
    USUAL_MODES,
    Ablation,
    Label,
    Mode,
    Point,
    Report,
    Simulators,
    explore,
    explore_without,
    parse_point,
)
from payonce.testing.crash.crossings import only_reads, site
from payonce.testing.crash.explore import thinned
from payonce.testing.crash.scenarios import BROADCAST, CHARGE, REDRIVEN, TRANSFER, WIRE, payments, store
from payonce.testing.crash.scenarios.bank import Bank
from payonce.testing.crash.scenarios.bank_scenario import BankScenario
from payonce.testing.crash.scenarios.client import Banks, Order

PAID = frozenset({"paid"})


def problems(report: Report) -> set[str]:
    return {violation.kind for _, violation in report.violations}


def point(scenario: str, message: str, site: str, ordinal: int, mode: Mode) -> Point:
    return Point(scenario, Label(message, site, ordinal), mode)


@pytest.mark.full
def test_every_crossing_of_a_scenario_in_every_mode(postgres: ScratchServer) -> None:
    report = explore([BROADCAST], server=postgres)
    assert report.sound, report.summary()
    figures = report.figures()
    assert figures["modes"] == 6
    assert figures["points"] > 60
    crossed = report.coverage()
    assert {
        "engine.messages.work:Work.commit",
        "engine.effects.send:Run.intent",
        "engine.effects.store:record_performed",
    } <= set(crossed)
    assert all(struck[Mode.STOPPED] for struck in crossed.values())
    assert set(crossed["testing.crash.scenarios.client:BankClient.broadcast"]) == set(PROCESS_MODES)
    assert set(crossed["engine.messages.work:Work.commit"]) == set(USUAL_MODES)
    assert set(crossed["engine.effects.store:generations"]) == {Mode.STOPPED}


def test_a_quicker_look_leaves_no_site_and_mode_without_a_point() -> None:
    whole = [
        point(scenario, "m-1", site, ordinal, mode)
        for scenario, sites in (("one", ("rare", "often")), ("two", ("often",)))
        for site in sites
        for ordinal in range(1, 2 if site == "rare" else 6)
        for mode in (Mode.BEFORE, Mode.STOPPED)
    ]
    kept = thinned(whole, 3)
    assert thinned(whole, 1) == whole
    assert [(each.scenario, each.label.ordinal) for each in kept if each.mode is Mode.STOPPED] == [
        ("one", 1),
        ("one", 1),
        ("one", 4),
        ("two", 2),
        ("two", 5),
    ]
    assert {(each.label.site, each.mode) for each in kept} == {(each.label.site, each.mode) for each in whole}


async def pay_without_a_record(work: Work, banks: Banks) -> None:
    """The naive order: the call, and then the commit."""
    paid = await store.payment(work.read, work.message.correlation_id)
    if paid.state == "new":
        receipt = await banks.home.wire(Order(f"{paid.id}:1", paid.minor))
        async with work.commit() as tx:
            await store.move(tx, paid.id, "paid", "new", number=receipt.number)
            await store.tell(tx, paid.id)


class WithoutEffects(BankScenario):
    """Its own rows are all that it has to hold against the bank's books."""

    async def check(self, read: Reads, simulators: Simulators) -> list[str]:
        ours = {each.number for each in (await store.states(read)).values()}
        theirs = {entry.number for bank in simulators.values() if isinstance(bank, Bank) for entry in bank.books}
        return [] if ours == theirs else [f"we have {ours}, the bank has {theirs}"]


NAIVE = WithoutEffects(
    "naive", (handles(payments.WIRE)(pay_without_a_record),), payments.WIRE, {"n-1": 100}, {"n-1": PAID}
)


RECEIPT = BankScenario("receipt", (payments.send_receipt,), payments.RECEIPT, {"r-1": 1}, {"r-1": frozenset({"new"})})


def test_a_handler_that_forgets_what_it_sent_is_found_out(postgres: ScratchServer) -> None:
    strike = point("naive", "n-1", "testing.crash.scenarios.client:BankClient.wire", 1, Mode.AFTER)
    report = explore([NAIVE], server=postgres, only=strike)
    assert not report.sound
    assert {"happened twice", "books differ"} <= problems(report)


def test_the_same_handler_is_found_out_by_exploring(postgres: ScratchServer) -> None:
    report = explore([NAIVE], server=postgres)
    assert "happened twice" in problems(report)
    assert not report.uncovered
    assert str(parse_point(report.violations[0][0])) == report.violations[0][0]


def test_a_scenario_that_is_wrong_without_a_crash_is_told(postgres: ScratchServer) -> None:
    wrong = replace(RECEIPT, name="wrong", ends={"r-1": frozenset({"returned"})})
    report = explore([wrong], server=postgres)
    assert report.violations[0][0] == "wrong, without a crash"
    assert problems(report) == {"books differ"}


def test_a_label_that_is_not_reached_again_is_a_failure(postgres: ScratchServer) -> None:
    nowhere = point("naive", "n-1", "engine.messages.work:Work.commit", 7, Mode.BEFORE)
    report = explore([NAIVE], server=postgres, only=nowhere)
    assert problems(report) == {"not reached again"}
    assert report.uncovered == [nowhere]
    assert not report.sound


async def wait_for_ever(work: Work) -> None:
    await work.read.fetchval("select 1")
    raise AssertionError("never")


def test_a_message_that_never_ends_is_stuck(postgres: ScratchServer) -> None:
    stuck = BankScenario(
        "stuck", (handles(payments.CHARGE)(wait_for_ever),), payments.CHARGE, {"s-1": 1}, {"s-1": PAID}
    )
    strike = point("stuck", "s-1", "tests.crash.test_explorer:wait_for_ever", 1, Mode.BEFORE)
    assert problems(explore([stuck], server=postgres, only=strike)) == {"stuck"}


@pytest.mark.parametrize(
    ("scenario", "message", "site", "ordinal", "mode"),
    [
        # Charged and published, but the commit is lost: the next run returns the recorded result.
        ("charge", "c-1", "engine.messages.work:Work.commit", 1, Mode.BEFORE),
        # Stopped inside its transaction until the server ends its session.
        ("charge", "c-1", "engine.messages.work:Work.commit", 1, Mode.STOPPED),
        # The commit arrives when its lease is over and nobody could take the locked message.
        ("charge", "c-1", "engine.messages.work:Work.commit", 1, Mode.LATE),
        # Sends after a person has ruled it out: the person is asked again.
        ("wire", "w-1", "testing.crash.scenarios.client:BankClient.wire", 1, Mode.STOPPED),
        # The answer's commit lost, and committed with its answer lost: the message goes on with it, and not before.
        ("wire-redriven", "-", "testing.crash.person:answer", 1, Mode.BEFORE),
        ("wire-redriven", "-", "testing.crash.person:answer", 1, Mode.AFTER),
        # Between the two steps of a transfer.
        ("transfer", "t-2", "engine.messages.work:Work.commit", 1, Mode.AFTER),
    ],
)
def test_money_moves_once(
    postgres: ScratchServer, scenario: str, message: str, site: str, ordinal: int, mode: Mode
) -> None:
    strike = point(scenario, message, site, ordinal, mode)
    report = explore([CHARGE, WIRE, REDRIVEN, TRANSFER], server=postgres, only=strike)
    assert report.sound, report.summary()


# Every check of a change runs `./dev crash` too, which takes each of them out.
@pytest.mark.full
@pytest.mark.parametrize(
    "name",
    [
        "the intent on record",
        "the fence of the commit",
        "contradictions",
        "state and next message in one commit",
        "an answer wakes a parked message",
        "an answer wakes a waiting message",
    ],
)
def test_a_safeguard_that_is_taken_out_is_missed(postgres: ScratchServer, name: str) -> None:
    [ablation] = [each for each in ABLATIONS if each.name == name]
    [caught] = explore_without([ablation], [CHARGE, WIRE, REDRIVEN], server=postgres)
    assert caught.at is not None, f"without {name} the explorer finds nothing"


@pytest.mark.full
def test_an_ablation_that_takes_nothing_out_is_told(postgres: ScratchServer) -> None:
    idle = Ablation("nothing", lambda: None, "receipt", Mode.AFTER)
    report = explore([RECEIPT], every=5, server=postgres, ablations=[idle])
    assert not report.violations
    assert [each.at for each in report.ablation_results] == [None]
    assert not report.sound
    assert "no damage was found" in report.summary()


def test_an_ablation_that_merely_breaks_the_run_is_not_missed(postgres: ScratchServer) -> None:
    breaks = Ablation("everything", lambda: os._exit(3), "receipt", Mode.AFTER)
    [caught] = explore_without([breaks], [RECEIPT], server=postgres)
    assert caught.at is None


def test_names_that_do_not_exist_are_refused(postgres: ScratchServer) -> None:
    with pytest.raises(Invalid, match="no scenario 'nope'"):
        explore([BROADCAST], server=postgres, only=point("nope", "a", "b:c", 1, Mode.LATE))
    with pytest.raises(Invalid, match="the same name"):
        explore([BROADCAST, BROADCAST], server=postgres)
    with pytest.raises(Invalid, match="not a point"):
        parse_point("charge @ c-1")


@pytest.mark.parametrize(
    ("statement", "reads"),
    [
        ("select *, payonce.due_now() as now from payonce.effects where id = any($1)", True),
        ("  select count(*) from t where (a = 1 or b in (select max(c) from u))", True),
        ("select * from t cross join lateral (select max(a) from u where u.id = t.id) m", True),
        ("select * from t cross join lateral (select payonce.post(t.a)) m", False),
        ("select * from t for update", False),
        ("select payonce.post($1)", False),
        ("select pg_notify('a', 'b')", False),
        ("with gone as (delete from t returning *) select * from gone", False),
        ("update t set a = 1", False),
        ("copy", False),
    ],
)
def test_only_what_surely_changes_nothing_counts_as_a_read(statement: str, reads: bool) -> None:
    assert only_reads(statement) is reads


def test_a_crossing_is_named_after_its_originator() -> None:
    assert site() == "tests.crash.test_explorer:test_a_crossing_is_named_after_its_originator"


@pytest.mark.full
@pytest.mark.timeout(600)
def test_every_scenario_and_every_safeguard(postgres: ScratchServer) -> None:
    report = explore(BUILT_IN, server=postgres, ablations=ABLATIONS)
    assert report.sound, report.summary()


async def fall_over(work: Work) -> None:
    await work.read.fetchval("select 1")
    os._exit(3)


def test_a_process_that_ends_by_itself_is_told(postgres: ScratchServer) -> None:
    falls = BankScenario("falls", (handles(payments.CHARGE)(fall_over),), payments.CHARGE, {"f-1": 1}, {"f-1": PAID})
    report = explore([falls], server=postgres)
    assert problems(report) == {"child failed"}
