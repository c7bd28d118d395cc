"""Signatures of webhooks: made and read by both schemes, alike with the reference package, refused in words."""

import base64
import pickle
from datetime import UTC, datetime, timedelta

import pytest
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from payonce.kit.outcomes import Invalid
from payonce.kit.webhooks import Refusal, RefusalReason, Scheme, Secret, Verified, new_secret, signed_headers, verify
from payonce.kit.webhooks.secrets import secrets_of
from payonce.kit.webhooks.verification import BODY_MAX_BYTES, HEADER_MAX_CHARS

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
SECRET = Secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
OTHER = Secret("whsec_" + base64.b64encode(b"another secret of theirs").decode())
EVENT = "evt_1"
BODY = '{"id":"evt_1","type":"invoice.paid","data":{"to":"Zoë"}}'.encode()
STANDARD_ONLY = {"schemes": (Scheme.STANDARD,)}
OLDER_ONLY = {"schemes": (Scheme.OLDER,)}


def signed(*secrets: Secret, at: datetime = NOW, body: bytes = BODY) -> dict[str, str]:
    return signed_headers(secrets or (SECRET,), EVENT, at, body)


def standard(headers: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.startswith("webhook-")}


def older(headers: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.startswith("X-")}


def why(answer: Verified | Refusal) -> str:
    assert isinstance(answer, Refusal), answer
    return f"{answer.status} {answer.why}"


def test_both_schemes_verify_what_we_sign() -> None:
    headers = signed()
    assert verify(standard(headers), BODY, [SECRET], NOW) == Verified(Scheme.STANDARD, NOW, EVENT)
    assert verify(older(headers), BODY, [SECRET], NOW) == Verified(Scheme.OLDER, NOW, None)
    assert verify(headers, BODY, [SECRET], NOW) == Verified(Scheme.STANDARD, NOW, EVENT)


def test_the_older_scheme_is_the_one_that_its_receivers_compute_themselves() -> None:
    """HMAC-SHA256 over `timestamp.body` in hexadecimal; computed once with OpenSSL and written down here."""
    headers = signed_headers(
        [Secret("a-shared-secret-of-ours")], EVENT, datetime.fromtimestamp(1_700_000_000, UTC), b"{}"
    )
    assert headers["X-Webhook-Timestamp"] == "1700000000"
    assert headers["X-Webhook-Signature"] == "sha256=5109844400b0d45f26fb9361b4b227f8f8f2a94ae2405b90d14fee90de466ecc"


def test_the_published_example_of_standard_webhooks_verifies() -> None:
    """From the documentation of the reference implementations."""
    body = b'{"test": 2432232314}'
    headers = {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }
    answer = verify(headers, body, [SECRET], datetime.fromtimestamp(1_614_265_330, UTC))
    assert isinstance(answer, Verified)


def test_the_reference_package_verifies_what_we_sign() -> None:
    headers = signed_headers([OTHER, SECRET], EVENT, datetime.now(UTC), BODY)
    for secret in (SECRET, OTHER):
        assert Webhook(secret.reveal()).verify(BODY, headers)["id"] == EVENT
    with pytest.raises(WebhookVerificationError):
        Webhook(new_secret().reveal()).verify(BODY, headers)


def test_we_verify_what_the_reference_package_signs() -> None:
    signature = Webhook(SECRET.reveal()).sign(EVENT, NOW, BODY.decode())
    headers = {"Webhook-Id": EVENT, "Webhook-Timestamp": str(int(NOW.timestamp())), "Webhook-Signature": signature}
    assert verify(headers, BODY, [SECRET], NOW, **STANDARD_ONLY) == Verified(Scheme.STANDARD, NOW, EVENT)  # type: ignore[arg-type]
    assert why(verify(headers, BODY, [OTHER], NOW)) == "401 forged"


def test_secrets_are_exchanged_without_a_gap() -> None:
    during = signed(OTHER, SECRET)
    for known in ([SECRET], [OTHER], [OTHER, SECRET]):
        assert isinstance(verify(standard(during), BODY, known, NOW), Verified)
    assert isinstance(verify(older(during), BODY, [SECRET], NOW), Verified), "the older header changes at the end"
    assert isinstance(verify(older(during), BODY, [OTHER, SECRET], NOW), Verified)
    assert why(verify(standard(signed(OTHER)), BODY, [SECRET], NOW)) == "401 forged"


@pytest.mark.parametrize(
    ("late_s", "expected"),
    [
        (-300, None),
        (300, None),
        (-301, "400 future"),
        (301, "400 stale"),
        (10**9, "400 stale"),
        (-(10**9), "400 future"),
    ],
)
@pytest.mark.parametrize("part", [standard, older])
def test_a_timestamp_is_held_against_the_clock_in_both_directions(
    part: object, late_s: int, expected: str | None
) -> None:
    headers = part(signed())  # type: ignore[operator]
    answer = verify(headers, BODY, [SECRET], NOW + timedelta(seconds=late_s), tolerance_s=300)
    assert isinstance(answer, Verified) if expected is None else why(answer) == expected


def test_a_changed_byte_anywhere_is_forged() -> None:
    for part in (standard, older):
        headers = part(signed())
        for place in range(len(BODY)):
            changed = BODY[:place] + bytes([BODY[place] ^ 1]) + BODY[place + 1 :]
            assert why(verify(headers, changed, [SECRET], NOW)) == "401 forged"


@pytest.mark.parametrize("name", ["webhook-id", "webhook-timestamp", "webhook-signature"])
@pytest.mark.parametrize("value", [None, "", "   "])
def test_a_missing_header_is_named(name: str, value: str | None) -> None:
    headers = standard(signed())
    del headers[name]
    answer = verify(headers if value is None else {**headers, name: value}, BODY, [SECRET], NOW)
    assert answer == Refusal(RefusalReason.MISSING, f"the header {name} is missing")
    assert answer.status == 400


def test_without_any_header_those_of_the_standard_are_asked_for() -> None:
    answer = verify({}, BODY, [SECRET], NOW)
    assert answer == Refusal(
        RefusalReason.MISSING, "the headers webhook-id, webhook-timestamp, webhook-signature are missing"
    )


def test_a_half_of_the_standard_does_not_fall_back_to_the_older_scheme() -> None:
    """Removing a header must not select the scheme that is checked."""
    headers = signed()
    del headers["webhook-signature"]
    assert why(verify(headers, BODY, [SECRET], NOW)) == "400 missing"
    assert isinstance(verify(headers, BODY, [SECRET], NOW, **OLDER_ONLY), Verified)  # type: ignore[arg-type]
    assert why(verify(older(headers), BODY, [SECRET], NOW, **STANDARD_ONLY)) == "400 missing"  # type: ignore[arg-type]


MALFORMED = [
    ("webhook-timestamp", "soon"),
    ("webhook-timestamp", "-1700000000"),
    ("webhook-timestamp", "1700000000.5"),
    ("webhook-timestamp", "1e9"),
    ("webhook-timestamp", "٣"),
    ("webhook-timestamp", "9" * 13),
    ("webhook-id", "evt.1"),
    ("webhook-id", "evt 1"),
    ("webhook-id", "e" * 201),
    ("webhook-id", "Zoë"),
    ("webhook-id", "1700000000"),
    ("webhook-signature", "g0hM9SsE"),
    ("webhook-signature", "v2,g0hM9SsE"),
    ("webhook-signature", "v1a,g0hM9SsE"),
    ("webhook-signature", " ".join(["v1,x"] * 21)),
    ("webhook-signature", "v1," + "x" * HEADER_MAX_CHARS),
]


@pytest.mark.parametrize(("name", "value"), MALFORMED)
def test_a_malformed_header_is_named_and_not_quoted(name: str, value: str) -> None:
    answer = verify({**standard(signed()), name: value}, BODY, [SECRET], NOW)
    assert why(answer) == "400 malformed"
    assert isinstance(answer, Refusal)
    assert name in answer.detail
    assert value not in answer.detail


@pytest.mark.parametrize("value", ["md5=00", "sha256", "sha256=", "00"])
def test_a_malformed_older_signature_is_named(value: str) -> None:
    answer = verify({**older(signed()), "X-Webhook-Signature": value}, BODY, [SECRET], NOW)
    assert why(answer) == "400 malformed"


def test_signatures_of_other_versions_stand_beside_ours() -> None:
    headers = standard(signed())
    headers["webhook-signature"] = f"v1a,ZZZ v2,x {headers['webhook-signature']} v1,bm8="
    assert isinstance(verify(headers, BODY, [SECRET], NOW), Verified)


def test_only_the_canonical_spelling_of_a_signature_counts() -> None:
    """Otherwise one signature would have many encodings, and each would pass a check for repetitions."""
    headers = standard(signed())
    text = headers["webhook-signature"]
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    twin = text[:-2] + alphabet[alphabet.index(text[-2]) ^ 1] + "="
    assert base64.b64decode(twin[3:]) == base64.b64decode(text[3:])
    assert why(verify({**headers, "webhook-signature": twin}, BODY, [SECRET], NOW)) == "401 forged"


def test_a_header_that_comes_twice_is_refused() -> None:
    pairs = [*standard(signed()).items(), ("Webhook-Id", "evt_2")]
    assert why(verify(pairs, BODY, [SECRET], NOW)) == "400 malformed"


def test_headers_are_read_as_asgi_has_them() -> None:
    pairs = [(name.encode(), value.encode()) for name, value in signed().items()]
    assert isinstance(verify(pairs, BODY, [SECRET], NOW), Verified)


def test_a_body_beyond_the_limit_is_not_even_hashed() -> None:
    body = b"x" * (BODY_MAX_BYTES + 1)
    assert why(verify(signed(body=body), body, [SECRET], NOW)) == "413 too large"


def test_neither_scheme_can_be_passed_off_as_the_other() -> None:
    """Both are keyed alike, so what one signs must never read as something that the other signs."""
    stamp = str(int(NOW.timestamp()))
    inner = f"{stamp}.".encode() + BODY
    taken = older(signed(body=inner))["X-Webhook-Signature"].removeprefix("sha256=")
    forged = {
        "webhook-id": stamp,
        "webhook-timestamp": stamp,
        "webhook-signature": f"v1,{base64.b64encode(bytes.fromhex(taken)).decode()}",
    }
    assert isinstance(verify(forged, BODY, [SECRET], NOW, **STANDARD_ONLY), Verified), "the trick works where one is on"  # type: ignore[arg-type]
    assert why(verify(forged, BODY, [SECRET], NOW)) == "400 malformed"
    digits = Webhook(SECRET.reveal()).sign(stamp, NOW, BODY.decode()).removeprefix("v1,")
    turned = {"X-Webhook-Timestamp": stamp, "X-Webhook-Signature": f"sha256={base64.b64decode(digits).hex()}"}
    assert isinstance(verify(turned, inner, [SECRET], NOW, **OLDER_ONLY), Verified), "the trick works where one is on"  # type: ignore[arg-type]
    assert why(verify(turned, inner, [SECRET], NOW)) == "400 malformed"


def test_we_never_sign_an_id_that_could_be_read_otherwise() -> None:
    for event_id in ("1700000000", "evt.1", "", "evt 1", "e" * 201, "Zoë"):
        with pytest.raises(Invalid, match="event id"):
            signed_headers([SECRET], event_id, NOW, BODY)


def test_a_refusal_is_a_problem_document() -> None:
    answer = verify({}, BODY, [SECRET], NOW)
    assert isinstance(answer, Refusal)
    assert answer.problem("/v1/webhooks/payment") == {
        "type": "about:blank",
        "title": "Bad Request",
        "status": 400,
        "detail": answer.detail,
        "instance": "/v1/webhooks/payment",
    }


def test_a_secret_is_base64_behind_its_prefix_and_itself_without() -> None:
    plain = "a-shared-secret-of-ours"
    assert Secret(plain).key == plain.encode()
    assert Secret("whsec_" + base64.b64encode(plain.encode()).decode()).key == plain.encode()
    assert Secret("whsec_" + base64.b64encode(plain.encode()).decode().rstrip("=")).key == plain.encode()
    assert len(new_secret().key) == 32
    assert new_secret().key != new_secret().key
    assert [each.key for each in secrets_of(f" {plain} {SECRET.reveal()}\n")] == [plain.encode(), SECRET.key]


@pytest.mark.parametrize(
    "text", ["", "short", "whsec_", "whsec_!!!!", "whsec_YWJj", "x" * 257, "with a space in it!", "Zoë" * 9]
)
def test_a_bad_secret_is_refused_without_being_shown(text: str) -> None:
    with pytest.raises(Invalid) as refused:
        Secret(text)
    assert not text or text not in str(refused.value).replace("whsec_ in a", "")


def test_a_secret_is_not_shown_or_pickled() -> None:
    assert SECRET.reveal() not in repr(SECRET)
    with pytest.raises(TypeError):
        pickle.dumps(SECRET)


@pytest.mark.parametrize(
    ("secrets", "tolerance_s"), [([], 300), ([SECRET] * 11, 300), ([SECRET], 0), ([SECRET], 10**6)]
)
def test_a_verifier_that_could_not_refuse_anything_is_refused(secrets: list[Secret], tolerance_s: int) -> None:
    with pytest.raises(Invalid):
        verify(signed(), BODY, secrets, NOW, tolerance_s=tolerance_s)


def test_a_verifier_without_a_scheme_is_refused() -> None:
    with pytest.raises(Invalid, match="no scheme"):
        verify(signed(), BODY, [SECRET], NOW, schemes=())
