"""Every form of every page, as every role and as nobody: what a role may not do is refused before anything is done."""

import hmac
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import pytest

from payonce.console.page import PageRoute, Visit
from payonce.engine.operators import Role
from payonce.testing import OpenStage
from tests.ablations import Ablations, cases, missed, patched
from tests.console.visitor import Visitor, console, every_page, give_login, visiting

CHANGED = """
    select (select count(*) from payonce.audit_log), (select count(*) from payonce.freezes),
        (select count(*) from payonce.velocity_limits), (select count(*) from payonce.approval_thresholds)
"""
FORM = {"why": "a test", "asset": "EUR", "amount": "1.00", "everything": "yes", "sure": "yes", "theme": "dark"}
"""Enough for several of the forms to be carried out."""

Changes = Callable[[], Awaitable[object]]
"""What there is now of all that a form may change."""


def forms() -> Iterator[PageRoute]:
    for page in every_page():
        yield from (route for route in page.routes if route.method == "POST")


def path_of(route: PageRoute) -> str:
    return re.sub(r"{[^}]*}", "1", route.path)


@asynccontextmanager
async def people(stage: OpenStage) -> AsyncIterator[tuple[dict[Role, Visitor], Visitor, Changes]]:
    """One of each role, logged in; a stranger; and what has changed since."""
    async with (
        stage() as s,
        console(s) as address,
        visiting(address) as stranger,
        visiting(address) as viewer,
        visiting(address) as operator,
        visiting(address) as approver,
    ):
        known = {Role.VIEWER: viewer, Role.OPERATOR: operator, Role.APPROVER: approver}
        for role, visitor in known.items():
            await give_login(s, str(role), role)
            await visitor.log_in(str(role))

        async def state() -> object:
            return tuple(await s.owner.fetchrow(CHANGED) or ())

        yield known, stranger, state


async def test_a_role_below_the_one_that_a_form_needs_is_refused_and_changes_nothing(stage: OpenStage) -> None:
    async with people(stage) as (known, _, state):
        tokens = {role: (await visitor.get("/queues")).field("csrf") for role, visitor in known.items()}
        before = await state()
        tried = 0
        for route in forms():
            for role in (each for each in Role if not each.may(route.role)):
                answer = await known[role].post(path_of(route), {**FORM, "csrf": tokens[role]}, follow=False)
                assert answer.status == 403, f"{role} {route.path}"
                assert f"{role} is {role}, but this needs" in answer.words
                tried += 1
        assert tried >= len(list(forms()))
        assert await state() == before


async def test_the_role_that_a_form_needs_is_let_through_to_it(stage: OpenStage) -> None:
    async with people(stage) as (known, _, _):
        for route in forms():
            page = await known[route.role].get("/queues")
            answer = await known[route.role].post(path_of(route), {"csrf": page.field("csrf")}, follow=False)
            assert answer.status in (303, 400, 404, 409, 200), (
                f"{route.role} {route.path}: {answer.status} {answer.words}"
            )


async def test_a_form_without_its_token_is_refused_for_every_role(stage: OpenStage) -> None:
    async with people(stage) as (known, _, state):
        foreign = (await known[Role.VIEWER].get("/queues")).field("csrf")
        before = await state()
        for route in forms():
            for role in (each for each in Role if each.may(route.role)):
                for form in (FORM, {**FORM, "csrf": foreign if role is not Role.VIEWER else "0" * 64}):
                    answer = await known[role].post(path_of(route), form, follow=False)
                    assert answer.status == 403, f"{role} {route.path}"
        assert await state() == before


async def test_a_stranger_is_led_to_the_login_whatever_they_send(stage: OpenStage) -> None:
    async with people(stage) as (known, stranger, state):
        token = (await known[Role.APPROVER].get("/queues")).field("csrf")
        before = await state()
        for route in forms():
            answer = await stranger.post(path_of(route), {**FORM, "csrf": token}, follow=False)
            assert (answer.status, answer.headers.get("Location", "").split("?")[0]) == (303, "/console/login")
        assert await state() == before


async def test_every_page_is_open_to_a_viewer_and_shows_them_no_form_they_may_not_send(stage: OpenStage) -> None:
    async with people(stage) as (known, _, _):
        for page in every_page():
            # The stream has no form, and no end that a test would wait for.
            pages = (each for each in page.routes if each.method == "GET" and "{" not in each.path)
            for route in (each for each in pages if each.path != "/live"):
                answer = await known[Role.VIEWER].get(route.path)
                assert answer.status == 200, route.path
                actions = re.findall(r'<form[^>]*method="post"[^>]*action="([^"]*)"', answer.text)
                assert set(actions) <= {"/console/theme", "/console/logout"}, route.path


ABLATIONS: Ablations = {
    "roles": (
        patched(Visit, "may", lambda visit, role: True),
        [test_a_role_below_the_one_that_a_form_needs_is_refused_and_changes_nothing],
    ),
    "tokens of forms": (
        patched(hmac, "compare_digest", lambda one, other: True),
        [test_a_form_without_its_token_is_refused_for_every_role],
    ),
}


@pytest.mark.parametrize(("name", "number"), cases(ABLATIONS))
async def test_without_the_safeguard_a_test_fails(stage: OpenStage, name: str, number: int) -> None:
    await missed(ABLATIONS, name, number, stage)
