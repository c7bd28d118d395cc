"""Everything that the documents name exists: settings, shell variables, routes, links, files, tests and events."""

import re
from functools import cache
from pathlib import Path
from typing import Final, get_args

import pytest

from payonce.engine.messages.policy import Policy, environment_name, override, override_from_environment
from payonce.kit.outcomes import Invalid
from payonce.services.billing.subscriptions.handlers.merchant_events import InvoiceEvent, SubscriptionEvent
from payonce.services.payouts.store.payouts import EVENTS as PAYOUT_EVENTS
from payonce.settings.references import ENDPOINT_VARIABLE
from payonce.settings.variables import variables
from tests.docs import messages_page
from tests.docs.documents import (
    DOCUMENTS,
    ROOT,
    blocks,
    name_of,
    names_in_capitals,
    shell_variables,
    spans,
)
from tests.docs.settings_page import MODELS

SETTINGS: Final = {name for model in MODELS for name in variables(model)} | {ENDPOINT_VARIABLE}
OF_THE_SHELL: Final = {"HOME", "PATH", "PWD"}
EACH: Final = pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)


@EACH
def test_every_name_in_capitals_is_a_setting_or_in_the_code(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    known = SETTINGS | names_of_the_code() | set.union(*shell_variables(text))
    named = {name for name in names_in_capitals(text, but="python") if not name.startswith("QUEUE_POLICY__")}
    assert [name for name in sorted(named - known) if not is_a_policy_field(name)] == []


@EACH
def test_every_variable_of_a_shell_block_has_a_value(path: Path) -> None:
    """It is assigned in the block or an earlier one, or is a setting, or the text asks the reader to set it."""
    text = path.read_text(encoding="utf-8")
    read, given = shell_variables(text)
    assert read <= given | SETTINGS | OF_THE_SHELL | set(spans(text)), sorted(read - given - SETTINGS)


@EACH
def test_every_changed_policy_is_one_of_a_queue(path: Path) -> None:
    for name, queue, value in re.findall(
        r"(QUEUE_POLICY__([A-Z_]+?)__[A-Z_]+)=([\w,.]+)", path.read_text(encoding="utf-8")
    ):
        [declared] = [each for each in policies() if environment_name(each.queue) == queue]
        assert override_from_environment(declared, {name: value}) != declared


@EACH
def test_every_link_leads_to_a_file_and_to_a_heading_in_it(path: Path) -> None:
    for target, _, heading in re.findall(r"\]\(([^)#\s]*)(#([^)\s]*))?\)", path.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        file = path.parent / target if target else path
        assert file.exists(), f"there is no {target}"
        assert not heading or heading in headings(file.read_text(encoding="utf-8")), f"{target} has no #{heading}"


@EACH
def test_every_file_that_is_named_is_there(path: Path) -> None:
    for span in spans(path.read_text(encoding="utf-8")):
        if re.fullmatch(r"(?:src|tests|docs|deploy|requirements)/[\w./-]+", span):
            assert (ROOT / span).exists(), f"there is no {span}"


@EACH
def test_every_test_that_is_named_is_one(path: Path) -> None:
    named = {span for span in spans(path.read_text(encoding="utf-8")) if re.fullmatch(r"test(_[a-z0-9]+){3,}", span)}
    assert named <= names_of_the_tests(), sorted(named - names_of_the_tests())


@EACH
def test_every_event_that_webhooks_bring_is_one(path: Path) -> None:
    for span in spans(path.read_text(encoding="utf-8")):
        if re.fullmatch(r"(?:subscription|invoice|payout|plan)\.[a-z_]+", span):
            assert span in events(), f"no webhook has the type {span}"
    for block in blocks(path.read_text(encoding="utf-8"), "sh", ""):
        for event in re.findall(r"--event '?([\w.*]+)'?", block):
            assert any(re.fullmatch(event.replace(".", r"\.").replace("*", ".*"), name) for name in events()), event


def test_the_page_on_webhooks_has_every_event() -> None:
    page = (ROOT / "docs" / "webhooks.md").read_text(encoding="utf-8")
    assert events() <= set(spans(page)), sorted(events() - set(spans(page)))


@cache
def events() -> set[str]:
    return {
        *(f"subscription.{event}" for event in get_args(SubscriptionEvent)),
        *(f"invoice.{event}" for event in get_args(InvoiceEvent)),
        *PAYOUT_EVENTS.values(),
    }


@cache
def names_of_the_code() -> set[str]:
    files = [ROOT / "dev", *(ROOT / "src").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
    files += [file for file in (ROOT / "deploy").rglob("*") if file.is_file()]
    return {name for file in files for name in re.findall(r"\b[A-Z][A-Z0-9_]+\b", file.read_text(encoding="utf-8"))}


@cache
def names_of_the_tests() -> set[str]:
    found = set()
    for file in (ROOT / "tests").rglob("*.py"):
        found |= {file.stem, *re.findall(r"def (test_\w+)", file.read_text(encoding="utf-8"))}
    return found


def policies() -> list[Policy]:
    return [each for queues in messages_page.SECTIONS.values() for each in queues]


def is_a_policy_field(name: str) -> bool:
    try:
        override(Policy("queue"), {name.lower(): "1"})
    except Invalid as refused:
        return "has no field" not in str(refused)
    return True


def headings(text: str) -> set[str]:
    """Anchors in GitHub's form: lower case, dashes for spaces, no other punctuation."""
    titles = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}
