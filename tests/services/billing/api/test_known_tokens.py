"""A token's signature is verified once, its end every time, and what is kept of it has a bound."""

import pytest

from payonce.services.billing.api import tokens as module
from payonce.services.billing.api.tokens import ACCESS_S, SKEW_S, Claims, Expired, Tokens
from tests.services.billing.api.counter import SECRET, ProcessClock

ADA = Claims("ada", "customer", 0)


def test_a_known_token_ends_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ProcessClock()
    tokens = Tokens([SECRET], clock=clock)
    text = tokens.issue(ADA)
    assert tokens.read(text) == ADA
    monkeypatch.setattr(Tokens, "_verified", lambda *_: pytest.fail("its signature was verified before"))
    assert tokens.read(text) == ADA
    clock.advance(ACCESS_S + SKEW_S + 1)
    with pytest.raises(Expired):
        tokens.read(text)


def test_one_letter_more_or_less_is_another_token() -> None:
    tokens = Tokens([SECRET], clock=ProcessClock())
    text = tokens.issue(ADA)
    assert tokens.read(text) == ADA
    for other in (text[:-1], text + "A", text[:-2] + ("AA" if text[-2:] != "AA" else "BB")):
        assert tokens.read(other) is None


def test_so_many_are_known_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KNOWN_MAX", 3)
    clock = ProcessClock()
    tokens = Tokens([SECRET], clock=clock)
    for number in range(10):
        clock.advance(1)
        assert tokens.read(tokens.issue(Claims(f"ada-{number}", "customer", 0))) is not None
    assert len(tokens._known) == 3
