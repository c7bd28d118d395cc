"""With a safeguard of the console taken out, named tests fail. A check that cannot fail is none."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from starlette.datastructures import FormData
from starlette.requests import Request

from payonce.console import auth, login
from payonce.console.template_environment import ENVIRONMENT
from payonce.console.ticket import Ticket
from payonce.engine.operators import Role, login_limits, sessions
from payonce.testing import OpenStage
from tests.ablations import Ablations, cases, given, missed, patched
from tests.console import test_auth, test_pages
from tests.engine import test_operators

FOR_EVER_S = 10 * 365 * 86_400


async def any_form(request: Request, csrf: str) -> FormData:
    return await request.form()


async def uncounted(*_: Any) -> int:
    return 0


async def judged_first(database: Any, name: str, address: str) -> int:
    """Looks at what was counted before, and counts afterwards: of many at once nobody sees the others."""
    row = await database.work.fetchval("select count(*) from payonce.login_failures where name = $1", name)
    if row >= login_limits.FAILURES_MAX:
        raise sessions.LoginRefused("too many logins failed", too_many=True)
    return 0


@contextmanager
def with_markup() -> Iterator[None]:
    """Templates that show text as it is."""
    assert ENVIRONMENT.cache is not None
    ENVIRONMENT.cache.clear()
    ENVIRONMENT.autoescape = False
    try:
        yield
    finally:
        ENVIRONMENT.autoescape = True
        ENVIRONMENT.cache.clear()


@contextmanager
def with_secrets() -> Iterator[None]:
    kept = dict(ENVIRONMENT.filters)
    ENVIRONMENT.filters |= {"redacted": str, "document": str}
    try:
        yield
    finally:
        ENVIRONMENT.filters.update(kept)


ABLATIONS: Ablations = {
    "the token of a form": (
        patched(login, "checked_form", any_form),
        [test_auth.test_a_form_without_its_token_or_with_anothers_changes_nothing],
    ),
    "the token of a page's form": (
        patched(auth, "checked_form", any_form),
        [test_pages.test_a_change_without_the_token_of_its_session_is_refused],
    ),
    "the origin of a form": (
        patched(auth, "check_origin", lambda request: None),
        [given(test_auth.test_a_form_of_another_site_is_refused_even_with_the_token, "https://evil.example")],
    ),
    "the names of this machine": (
        patched(auth, "_check_is_local", lambda request: None),
        [
            given(test_auth.test_without_a_login_a_name_that_was_made_to_point_here_is_refused, "evil.example"),
            given(test_auth.test_without_a_login_what_came_through_a_proxy_is_refused, "Forwarded"),
        ],
    ),
    "the ticket": (
        patched(Ticket, "matches_cookie", lambda self, cookie: True),
        [
            test_auth.test_a_stranger_behind_a_proxy_that_tells_nothing_of_itself_does_not_come_in,
            given(test_auth.test_a_wrong_token_or_cookie_does_not_lead_in, "guessed"),
        ],
    ),
    "the token of the link": (
        patched(Ticket, "matches_token", lambda self, token: True),
        [given(test_auth.test_a_wrong_token_or_cookie_does_not_lead_in, "guessed")],
    ),
    "the login beyond loopback": (
        patched(auth, "is_loopback", lambda host: True),
        [test_auth.test_beyond_loopback_nobody_comes_in_and_the_page_says_how_to_add_the_first],
    ),
    "the role of a route": (
        patched(Role, "may", lambda self, needed: True),
        [test_pages.test_a_viewer_is_shown_no_button_and_may_not_post],
    ),
    "the way back into the site": (
        patched(login, "_local_target", lambda wanted: wanted),
        [test_auth.test_a_login_leads_back_to_where_one_wanted_to_go_and_never_elsewhere],
    ),
    "escaping": (with_markup, [test_pages.test_what_a_payload_says_is_text_and_never_markup]),
    "redaction": (with_secrets, [test_pages.test_secrets_of_a_payload_or_an_error_are_not_shown]),
    "the count of guesses": (
        patched(sessions, "_count_attempt", uncounted),
        [test_operators.test_guessing_is_bounded_and_the_right_password_waits_as_well],
    ),
    "counting before judging": (
        patched(sessions, "_count_attempt", judged_first),
        [test_operators.test_many_guesses_at_once_are_counted_before_they_are_judged],
    ),
    "rest ends a session": (
        patched(sessions, "IDLE_S", FOR_EVER_S),
        [test_operators.test_a_session_ends_after_rest],
    ),
    "age ends a session": (
        patched(sessions, "ABSOLUTE_S", FOR_EVER_S),
        [test_operators.test_a_session_ends_by_age_however_busy],
    ),
}


@pytest.mark.parametrize(("name", "number"), cases(ABLATIONS))
async def test_a_safeguard_that_is_taken_out_is_missed(stage: OpenStage, name: str, number: int) -> None:
    await missed(ABLATIONS, name, number, stage)
