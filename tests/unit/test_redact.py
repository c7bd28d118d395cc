"""Secrets and card numbers do not reach logs, job logs or error texts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from payonce.kit.redact import HIDDEN, redact

SECRETS = {
    "password in a URL": ("cannot reach postgresql://app:hunter2@db:5432/x", "hunter2"),
    "password with odd characters in a URL": ("postgresql://app:p%40ss:w0rd@db/x", "w0rd"),
    "bearer token": ("Authorization: Bearer eyJhbGciOi.J9.abc-DEF_123", "eyJhbGciOi"),
    "basic credentials": ("authorization: basic dXNlcjpwYXNzd29yZA==", "dXNlcjpwYXNzd29yZA"),
    "webhook secret": ("signed with whsec_MfKQ9r8GKYqrTwjUPD8I", "MfKQ9r8"),
    "API key": ("used sk_live_51H8abcDEFghi", "51H8abc"),
    "JSON field": ('{"api_key": "abc123def", "n": 1}', "abc123def"),
    "query parameter": ("GET /v2/estimate?token=abc123def&from=usdt", "abc123def"),
    "assignment": ("HOST_WALLET_PRIVATE_KEY=0xdeadbeef0123", "0xdeadbeef0123"),
    "header": ("x-changenow-api-key: c0ffee-123", "c0ffee-123"),
    "python dict": ("{'client_secret': 'pi_123_secret_456'}", "pi_123_secret_456"),
    "card number": ("card 4242424242424242 declined", "4242424242424242"),
    "card number in groups": ("card 4242 4242 4242 4242 declined", "4242 4242"),
    "card number with dashes": ("card=5555-5555-5555-4444, declined", "5555-5555"),
    "card number at the end of a sentence": ("declined: 4242424242424242.", "4242424242424242"),
    "card number with its expiry": ("4242424242424242 12/27", "4242424242424242"),
    "short card number": ("amex 378282246310005", "378282246310005"),
    "password of several words": ('password = "correct horse battery"', "horse battery"),
}


@pytest.mark.parametrize("kind", SECRETS)
def test_a_secret_is_hidden(kind: str) -> None:
    text, secret = SECRETS[kind]
    hidden = redact(text)
    assert secret not in hidden
    assert HIDDEN in hidden


@pytest.mark.parametrize(
    "text",
    [
        "message 01a1de4e-83bd-72b6-8c9b-733d48f28ee7 of q:sub:renewals gave up after 6 of 6 attempts",
        "amount 4242424242424241 wei, order 1234567890123",
        "HTTP 429 from https://api.changenow.io/v2/exchange in 1234 ms",
        "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed",
        "2026-11-15T08:24:12.123456+00:00",
    ],
)
def test_what_a_reader_needs_stays(text: str) -> None:
    assert redact(text) == text


@given(st.text(max_size=100))
def test_redacting_twice_changes_nothing_more(text: str) -> None:
    once = redact(text)
    assert redact(once) == once


@given(st.text(st.characters(codec="ascii"), max_size=30), st.text(st.characters(codec="ascii"), max_size=30))
def test_a_card_number_is_hidden_between_any_words(before: str, after: str) -> None:
    assert "4242424242424242" not in redact(f"{before} 4242424242424242 {after}")
