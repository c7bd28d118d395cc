"""Whatever a stranger sends, the verifier answers, and what we did not sign never verifies."""

import base64
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from payonce.kit.webhooks import Refusal, Scheme, Secret, Verified, new_secret, signed_headers, verification, verify
from tests.kit.test_webhooks import BODY, NOW, OTHER, SECRET, signed

STATUSES = {400, 401, 413}
NAMES = ["webhook-id", "webhook-timestamp", "webhook-signature", "X-Webhook-Timestamp", "X-Webhook-Signature"]
GENUINE = signed()

near = st.integers(-400, 400).map(lambda s: str(int(NOW.timestamp()) + s))
anything = st.one_of(
    st.text(max_size=40),
    st.binary(max_size=40),
    near,
    st.sampled_from([*GENUINE.values(), "v1,", "v1,=", "sha256=", "NaN", "inf", "\ud800", "１７", "v1,\ud800 v1,é"]),
)
names = st.one_of(
    st.sampled_from(NAMES), st.sampled_from(NAMES).map(str.upper), st.text(max_size=20), st.binary(max_size=20)
)
pairs = st.lists(st.tuples(names, anything), max_size=8)
mappings = st.dictionaries(
    st.sampled_from(NAMES), st.one_of(st.text(max_size=40), near, st.sampled_from([*GENUINE.values()]))
)
schemes = st.sampled_from([(Scheme.STANDARD,), (Scheme.OLDER,), tuple(Scheme), tuple(Scheme)[::-1]])


@given(headers=st.one_of(pairs, mappings), body=st.binary(max_size=200), accepted=schemes)
def test_any_request_is_answered_and_none_that_we_did_not_sign_verifies(
    headers: Any, body: bytes, accepted: Any
) -> None:
    answer = verify(headers, body, [SECRET, OTHER], NOW, schemes=accepted)
    assert isinstance(answer, Refusal)
    assert answer.status in STATUSES
    assert answer.problem()["status"] == answer.status


@given(
    body=st.binary(max_size=300),
    event_id=st.from_regex(r"\A[a-z][A-Za-z0-9_-]{0,40}\Z"),
    at=st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1)).map(lambda moment: moment.replace(tzinfo=UTC)),  # noqa: DTZ001
    late_s=st.integers(-299, 299),
    accepted=schemes,
)
def test_whatever_we_sign_verifies(body: bytes, event_id: str, at: datetime, late_s: int, accepted: Any) -> None:
    at = at.replace(microsecond=0)
    answer = verify(
        signed_headers([OTHER, SECRET], event_id, at, body),
        body,
        [SECRET],
        at + timedelta(seconds=late_s),
        schemes=accepted,
    )
    if accepted[0] is Scheme.OLDER and verification._BEGINS_WITH_A_TIME.match(body) and len(accepted) > 1:
        assert isinstance(answer, Refusal)
    else:
        assert answer == Verified(accepted[0], at, event_id if accepted[0] is Scheme.STANDARD else None)


@given(st.data())
def test_no_change_to_a_signed_request_verifies(data: st.DataObject) -> None:
    """One part of a genuine request is replaced by something else; the other scheme's headers are not there to help."""
    part = data.draw(st.sampled_from([NAMES[:3], NAMES[3:]]))
    headers = {name: GENUINE[name] for name in part}
    name = data.draw(st.sampled_from([*part, "body"]))
    body = BODY
    if name == "body":
        body = data.draw(st.binary(max_size=300))
        assume(body != BODY)
    else:
        value = data.draw(st.one_of(st.text(max_size=80), near))
        # Case does not matter in hexadecimal, nor do blanks around a header's value, and entries may be repeated.
        assume(value.strip(" \t").lower() != GENUINE[name].lower())
        assume(GENUINE[name] not in value.split(" "))
        headers[name] = value
    assert isinstance(verify(headers, body, [SECRET], NOW), Refusal)


@given(st.binary(min_size=16, max_size=256))
def test_another_key_never_verifies(key: bytes) -> None:
    other = Secret("whsec_" + base64.b64encode(key).decode())
    assume(other.key != SECRET.key)
    assert isinstance(verify(GENUINE, BODY, [other, new_secret()], NOW), Refusal)


@pytest.mark.parametrize(
    ("name", "replacement"),
    [
        ("_any_matches", lambda expected, given: True),
        ("_timely", lambda timestamp, name, now, tolerance_s: now),
        ("_DIGITS", verification._PRINTABLE),
    ],
)
def test_without_a_safeguard_these_tests_fail(name: str, replacement: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The signature, the clock, and the strict reading of a time."""
    monkeypatch.setattr(verification, name, replacement)
    with pytest.raises((AssertionError, ValueError)):
        refuse_three_tricks()


def test_with_every_safeguard_they_pass() -> None:
    refuse_three_tricks()


def refuse_three_tricks() -> None:
    stale = {**GENUINE, "webhook-timestamp": str(int(GENUINE["webhook-timestamp"]) - 10_000)}
    for headers, body in [(GENUINE, BODY + b" "), (stale, BODY), ({**GENUINE, "webhook-timestamp": "1e9"}, BODY)]:
        answer = verify(headers, body, [SECRET], NOW)
        assert isinstance(answer, Refusal)
        assert answer.status == (401 if body != BODY else 400)
