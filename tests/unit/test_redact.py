"""Secrets and card numbers do not reach logs, job logs or error texts."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from payonce.app.logging import without_secrets
from payonce.kit.redact import HIDDEN, LOOK_AHEAD_CHARS, TEXT_MAX_CHARS, candidates, redact

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
    "card number of twelve digits": ("maestro 501800000009 declined", "501800000009"),
    "card number of nineteen digits": ("card 6304000000000000000", "6304000000000000000"),
    "card number in a path": ("GET /v1/tokens/4242424242424242 answered 404", "4242424242424242"),
    "card number beside others": ("12 4242 4242 4242 4242 7", "4242"),
    "password of several words": ('password = "correct horse battery"', "horse battery"),
    "password with a quote in it": ('{"password":"ab\\"cdef-real-secret"}', "cdef-real-secret"),
    "password with a quote in it, in Python": (r"{'password': 'ab\'cdef-real-secret'}", "cdef-real-secret"),
    "password that was cut": ('{"n": 1, "password": "correct horse', "horse"),
    "JSON within JSON": (r"vendor said {\"api_key\": \"supersecretvalue\"}", "supersecretvalue"),
    "JSON within JSON with a quote in it": (r"{\"secret\": \"ab\\\"real-secret\", \"n\": 1}", "real-secret"),
    "JSON within JSON that was cut": (r"vendor said {\"api_key\": \"supersecretvalue", "supersecretvalue"),
    "short bearer token": ("Authorization: Bearer abc", "abc"),
    "digest credentials": ("authorization: Digest username=joe, response=deadbeef", "deadbeef"),
    "card check": ('{"cvc": "123"}', "123"),
    "card check of another name": ("card_cvv=987&x=1", "987"),
    "PIN": ('{"pin": "1234"}', "1234"),
    "mnemonic": ('{"mnemonic": "abandon ability able"}', "ability"),
    "seed phrase": ("{'seed_phrase': 'abandon ability able'}", "ability"),
    "passphrase": ("passphrase=swordfish", "swordfish"),
    "credential": ('{"credentials": "abcdef"}', "abcdef"),
    "IBAN": ("iban=DE89370400440532013000", "DE89370400440532013000"),
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
        "shipping: 1234, spin=abcd, urban: yes, pinned=true",
        '{"password": "", "n": 1}',
    ],
)
def test_what_a_reader_needs_stays(text: str) -> None:
    assert redact(text) == text


def test_what_stands_beside_a_secret_stays() -> None:
    assert redact('{"password":"ab\\"c", "n": 1}') == f'{{"password":{HIDDEN}, "n": 1}}'
    assert redact(r"{\"secret\": \"ab\\\"c\", \"n\": 1}") == rf"{{\"secret\": {HIDDEN}, \"n\": 1}}"
    assert redact("authorization: Bearer abc\nnext: line") == f"authorization: {HIDDEN}\nnext: line"


@pytest.mark.parametrize("filler", ["1-", "1 ", "11 "])
def test_card_numbers_are_looked_for_with_an_effort_that_grows_with_the_text(filler: str) -> None:
    width = len(filler.rstrip("- "))
    few, many = (
        sum(1 for _ in candidates([(at, at + width) for at in range(0, count * len(filler), len(filler))]))
        for count in (400, 1_600)
    )
    assert 4 * few <= many <= 8 * 1_600


@pytest.mark.parametrize(
    "filler",
    [
        "1-",
        "1 ",
        "a-",
        "a",
        "1",
        "-",
        " ",
        "1x ",
        "password",
        "password-",
        "password ",
        "password:",
        "password: ",
        'password:"',
        "password='",
        r"password:\"",
        r"password:\\\"",
        'password:"\\',
        "bearer ",
        "basic",
        "sk_-",
        "sk_",
        "://a:",
        "://",
        "a:a@",
        "authorization ",
        "authorization:",
        "pin",
        "cvc-",
        "token\n",
    ],
)
def test_no_text_holds_the_process_up(filler: str) -> None:
    """Work that grew with the square of these 300,000 characters would take hours, and the test's time would end."""
    redact(filler * (300_000 // len(filler)), max_chars=300_000)


@given(
    st.text(st.sampled_from("""0124 -a.:="'\\\n{},"""), max_size=80),
    st.sampled_from(["", "pin", "token", '\\"api_key\\"']),
)
def test_redacting_texts_like_secrets_twice_changes_nothing_more(text: str, name: str) -> None:
    once = redact(f"{name}{text}")
    assert redact(once) == once


@given(st.text(max_size=100))
def test_redacting_twice_changes_nothing_more(text: str) -> None:
    once = redact(text)
    assert redact(once) == once


@given(st.text(st.characters(codec="ascii"), max_size=30), st.text(st.characters(codec="ascii"), max_size=30))
def test_a_card_number_is_hidden_between_any_words(before: str, after: str) -> None:
    assert "4242424242424242" not in redact(f"{before} 4242424242424242 {after}")


@pytest.mark.parametrize("shown", ["00000000-0000-7000-8000-000000000000", "01a1e1c2-bec9-7000-8c64-000000000000"])
def test_an_id_of_ours_stays_whole_whatever_its_digits(shown: str) -> None:
    assert redact(f"there is no transfer '{shown}'") == f"there is no transfer '{shown}'"
    # What only begins like one is none.
    assert redact("4242-4242-4242-4242") == HIDDEN
    assert HIDDEN in redact(f"{shown}-4242-4242-4242-4242")


def test_a_long_text_is_cut_and_no_half_secret_shows_at_the_cut() -> None:
    assert redact("x" * TEXT_MAX_CHARS) == "x" * TEXT_MAX_CHARS
    cut = redact("x" * (TEXT_MAX_CHARS + 5_000))
    assert cut == "x" * TEXT_MAX_CHARS + "… (5,000 more characters)"
    for before in range(TEXT_MAX_CHARS - 25, TEXT_MAX_CHARS + 1):
        shown = redact("x" * (before - 1) + " 4242424242424242 " + "y" * 50_000)
        assert "4242" not in shown
        assert "hunter2" not in redact("x" * (before - 12) + " password=hunter2hunter2 " + "y" * 50_000)


def test_what_was_hidden_moves_no_half_secret_before_the_cut() -> None:
    end = TEXT_MAX_CHARS + LOOK_AHEAD_CHARS
    for missing in range(1, 16):
        before = "password=" + "x" * 1_000 + " "
        text = (before + "y" * end)[: end - 17 + missing] + " 4242424242424242 " + "z" * 50_000
        assert "42" not in redact(text), missing


@pytest.mark.parametrize("filler", ["1 ", "1-", "token", "01901234-1234-7"])
def test_the_time_for_a_text_has_a_bound(filler: str) -> None:
    began = time.process_time()
    redact(filler * (5_000_000 // len(filler)))
    # In full it takes some seconds.
    assert time.process_time() - began < 0.5


def test_the_time_for_a_document_has_a_bound() -> None:
    document = {"lines": [{"text": "1 " * 1_000} for _ in range(2_000)]}
    began = time.process_time()
    shown = without_secrets(document)
    assert time.process_time() - began < 1.5
    assert shown["lines"][0]["text"] == "1 " * 1_000
    assert list(shown["lines"][-1].values()) == ["… (2,000 characters)"]
