"""Google's keys: fetched, kept, looked for anew when a token has another, and never more often than bounded."""

import base64
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from payonce.kit.http import HttpClient
from payonce.kit.outcomes import Invalid, Unavailable
from payonce.queues.cloudtasks import oidc
from payonce.queues.cloudtasks.oidc import GoogleKeys, Verifier
from payonce.taskserver import tokens
from payonce.taskserver.tokens import TokenMaker

ACCOUNT = "tasks@my-project.iam.gserviceaccount.com"
AUDIENCE = "https://gcsplit2.example"


class GoogleThere:
    """Google's endpoint of keys, in its own format, as an ASGI application."""

    def __init__(self, *makers: TokenMaker) -> None:
        self.makers = list(makers)
        self.asked = 0
        self.status = 200

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert scope["path"] == "/oauth2/v3/certs"
        self.asked += 1
        body = msgspec.json.encode({"keys": [jwk(maker) for maker in self.makers]})
        await send({"type": "http.response.start", "status": self.status, "headers": []})
        await send({"type": "http.response.body", "body": body})


def jwk(maker: TokenMaker) -> dict[str, str]:
    key: Any = load_pem_public_key(maker.public_key.encode())
    numbers = key.public_numbers()
    return {"kid": maker.kid, "kty": "RSA", "alg": "RS256", "use": "sig", "n": b64(numbers.n), "e": b64(numbers.e)}


def b64(number: int) -> str:
    return base64.urlsafe_b64encode(number.to_bytes((number.bit_length() + 7) // 8, "big")).decode().rstrip("=")


@pytest.fixture(autouse=True)
def signed_as_google(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "ISSUER", "https://accounts.google.com")


def verifier(google: GoogleThere, *, by_platform: bool = False) -> Verifier:
    keys = GoogleKeys(HttpClient("google", "https://google.example", transport=google))
    return Verifier(keys, ACCOUNT, by_platform=by_platform)


def forwarded(token: str) -> str:
    """As Cloud Run passes it on behind its IAM check."""
    return f"Bearer {token.rpartition('.')[0]}.SIGNATURE_REMOVED_BY_GOOGLE"


async def test_a_token_of_google_is_verified_and_the_keys_are_kept() -> None:
    maker = TokenMaker()
    google = GoogleThere(maker)
    checking = verifier(google)
    for _ in range(3):
        await checking.check(f"Bearer {maker.token(ACCOUNT, AUDIENCE)}", AUDIENCE)
    assert google.asked == 1


async def test_a_new_key_is_looked_for_and_an_unknown_one_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    old, new, stranger = TokenMaker(), TokenMaker(), TokenMaker()
    google = GoogleThere(old)
    checking = verifier(google)
    await checking.check(f"Bearer {old.token(ACCOUNT, AUDIENCE)}", AUDIENCE)
    google.makers.append(new)
    monkeypatch.setattr(oidc, "REFETCH_MIN_S", 0.0)
    await checking.check(f"Bearer {new.token(ACCOUNT, AUDIENCE)}", AUDIENCE)
    monkeypatch.setattr(oidc, "REFETCH_MIN_S", 60.0)
    for _ in range(5):
        with pytest.raises(Invalid, match="unknown key"):
            await checking.check(f"Bearer {stranger.token(ACCOUNT, AUDIENCE)}", AUDIENCE)
    assert google.asked == 2


async def test_a_token_holds_for_its_audience_alone() -> None:
    maker = TokenMaker()
    checking = verifier(GoogleThere(maker))
    token = f"Bearer {maker.token(ACCOUNT, AUDIENCE)}"
    await checking.check(token, AUDIENCE)
    with pytest.raises(Invalid, match="wrong audience"):
        await checking.check(token, "https://gcsplit3.example")


async def test_a_token_of_another_issuer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    maker = TokenMaker()
    monkeypatch.setattr(tokens, "ISSUER", "https://cloudtasks.payonce.invalid")
    with pytest.raises(Invalid, match="wrong issuer"):
        await verifier(GoogleThere(maker)).check(f"Bearer {maker.token(ACCOUNT, AUDIENCE)}", AUDIENCE)


async def test_without_keys_nobody_is_let_in() -> None:
    maker = TokenMaker()
    google = GoogleThere(maker)
    google.status = 503
    with pytest.raises(Unavailable, match="Google's public keys cannot be fetched"):
        await verifier(google).check(f"Bearer {maker.token(ACCOUNT, AUDIENCE)}", AUDIENCE)


async def test_a_token_as_cloud_run_forwards_it_is_taken_by_its_claims_where_the_settings_say_so() -> None:
    maker = TokenMaker()
    google = GoogleThere(maker)
    checking = verifier(google, by_platform=True)
    for _ in range(2):
        await checking.check(forwarded(maker.token(ACCOUNT, AUDIENCE)), AUDIENCE)
    assert google.asked == 0, "there is nothing to verify with Google's keys"
    # What still has its signature came past the check: it is verified as everywhere.
    await checking.check(f"Bearer {maker.token(ACCOUNT, AUDIENCE)}", AUDIENCE)
    with pytest.raises(Invalid, match="unknown key"):
        await checking.check(f"Bearer {TokenMaker().token(ACCOUNT, AUDIENCE)}", AUDIENCE)


async def test_claims_are_checked_behind_cloud_run_too(monkeypatch: pytest.MonkeyPatch) -> None:
    maker = TokenMaker()
    checking = verifier(GoogleThere(maker), by_platform=True)
    wrong = {
        "wrong account": maker.token("somebody@my-project.iam.gserviceaccount.com", AUDIENCE),
        "wrong audience": maker.token(ACCOUNT, "https://gcsplit3.example"),
    }
    monkeypatch.setattr(tokens, "LIFETIME_S", -120)
    wrong["expired"] = TokenMaker().token(ACCOUNT, AUDIENCE)
    monkeypatch.setattr(tokens, "LIFETIME_S", 3_600)
    monkeypatch.setattr(tokens, "ISSUER", "https://somebody.example")
    wrong["wrong issuer"] = TokenMaker().token(ACCOUNT, AUDIENCE)
    for reason, token in wrong.items():
        with pytest.raises(Invalid, match=reason):
            await checking.check(forwarded(token), AUDIENCE)
    for text in ("Bearer .SIGNATURE_REMOVED_BY_GOOGLE", "Bearer a.b.c.SIGNATURE_REMOVED_BY_GOOGLE"):
        with pytest.raises(Invalid, match="not a token"):
            await checking.check(text, AUDIENCE)


async def test_a_token_without_its_signature_is_refused_where_nobody_else_has_checked_it() -> None:
    maker = TokenMaker()
    with pytest.raises(Invalid, match="On an open service somebody has forged it; leave"):
        await verifier(GoogleThere(maker)).check(forwarded(maker.token(ACCOUNT, AUDIENCE)), AUDIENCE)


async def test_cloud_run_checks_another_token_if_the_request_has_one() -> None:
    maker = TokenMaker()
    checking = verifier(GoogleThere(maker), by_platform=True)
    token = forwarded(maker.token(ACCOUNT, AUDIENCE))
    await checking.check(token, AUDIENCE)
    with pytest.raises(Invalid, match="another token"):
        await checking.check(token, AUDIENCE, serverless=True)
