"""Grouping of reasons: those that differ only in ids and numbers are one cause."""

from payonce.engine.monitoring.causes import NO_REASON, Cause, cause_key, causes


def test_reasons_that_differ_in_ids_are_one_cause_and_the_most_frequent_comes_first() -> None:
    reasons = [
        "changenow POST /v2/exchange timed out after 20 s; changenow.create AB12CD34EF56GH78/1/1:1 waits for a person",
        "the card expired",
        "changenow POST /v2/exchange timed out after 19 s; changenow.create ZZ99CD34EF56GH78/2/1:3 waits for a person",
        None,
    ]
    assert causes(reasons) == [Cause(reasons[0] or "", 2), Cause("the card expired", 1), Cause(NO_REASON, 1)]
    assert causes([]) == []


def test_words_tell_causes_apart() -> None:
    assert cause_key("the bank is away") != cause_key("the bank is closed")
    assert cause_key("no payout 01a1de4e-83bd-72b6-8c9b-733d48f28ee7") == cause_key(
        "no payout ffffffff-83bd-72b6-8c9b-733d48f28ee7"
    )
    assert cause_key("to 0xABCDEFabcdef") == cause_key("to 0x1234567890")
