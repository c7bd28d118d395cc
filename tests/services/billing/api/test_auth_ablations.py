"""With a safeguard of billing's door taken out, named tests fail. A check that cannot fail is none."""

from typing import Any

import pytest

from payonce.engine.operators import passwords
from payonce.http.kit import attempts
from payonce.services.billing.api import callers, tokens
from payonce.services.billing.subscriptions.store import accounts, refresh_tokens
from tests.ablations import Ablations, cases, given, missed, patched
from tests.services.billing.api import test_auth, test_callers
from tests.services.billing.api.conftest import OpenCounter


async def nothing(*_: Any, **__: Any) -> None:
    return None


async def uncounted(*_: Any) -> int:
    return 0


async def always(*_: Any, **__: Any) -> bool:
    return True


async def unchecked(password: str, stored: str | None) -> bool:
    """Answers at once for an address that nobody has."""
    return stored is not None and await passwords.is_password(password, stored)


ABLATIONS: Ablations = {
    "the end of a family whose token came twice": (
        patched(refresh_tokens, "_end_family", nothing),
        [
            given(test_auth.test_a_refresh_token_that_comes_twice_ends_its_login_and_no_other),
            given(test_auth.test_of_two_who_come_with_one_token_at_once_one_gets_in_and_the_login_ends),
        ],
    ),
    "the end of refresh tokens with a new password": (
        patched(accounts, "revoke_refresh_tokens", nothing),
        [given(test_auth.test_from_registration_to_a_new_password)],
    ),
    "the version of an account in its tokens": (
        patched(tokens.Tokens, "counts", always),
        [
            given(test_auth.test_from_registration_to_a_new_password),
            given(test_auth.test_a_new_role_ends_the_tokens_that_say_the_old_one),
            given(test_callers.test_every_token_that_is_none_gets_the_same_answer),
        ],
    ),
    "the count of guesses": (
        patched(accounts, "count_attempt", uncounted),
        [given(test_auth.test_guessing_is_bounded_and_a_right_password_waits_with_it, test_auth.LOGIN)],
    ),
    "the time that a name takes which nobody has": (
        patched(accounts, "is_password", unchecked),
        [given(test_auth.test_a_login_takes_as_long_for_an_address_that_nobody_has)],
    ),
    "the bound on wrong tokens": (
        patched(attempts, "FAILURES_MAX", 1_000_000),
        [given(test_callers.test_guessing_is_bounded_and_an_expired_token_is_no_guess)],
    ),
    "the role of an operator": (
        patched(callers, "_as_operator", lambda who: who),
        [given(test_callers.test_each_caller_opens_what_is_theirs)],
    ),
}


@pytest.mark.parametrize(("name", "number"), cases(ABLATIONS))
async def test_without_a_safeguard_its_test_fails(counter: OpenCounter, name: str, number: int) -> None:
    await missed(ABLATIONS, name, number, counter)  # type: ignore[arg-type]
