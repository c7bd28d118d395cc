"""Every command that a document or a help text names is one that the command line accepts."""

import importlib.machinery
import importlib.util
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pytest
import typer.main

from payonce.app import SERVICE_MODULES
from payonce.app.registry import SERVICES
from payonce.cli.application import app
from payonce.cli.demo.command import demonstrations
from payonce.http.kit.scopes import PLATFORM_SCOPES, TENANT_SCOPES
from payonce.testing.crash import BUILT_IN
from payonce.testing.crash.scenarios import ON_REDIS_ALONE
from tests.docs import messages_page
from tests.docs.documents import DOCUMENTS, ROOT, Line, commands, name_of

COMMANDS: Final = typer.main.get_command(app)
PLACEHOLDER: Final = re.compile(r"[A-Z][A-Z0-9_.:]*…?|.*…|\$[\w@]+", re.DOTALL)
"""A word that the reader replaces: QUEUE, ID…, 0199…, $WHO."""
ROLES: Final = {f"{service.name}.{role}" for service in SERVICES for role in service.roles}
SCOPES: Final = {*PLATFORM_SCOPES, *TENANT_SCOPES, *(name for service in SERVICES for name in service.scopes)}
SCENARIOS: Final = {
    *(scenario.name for scenario in (*BUILT_IN, *ON_REDIS_ALONE)),
    *(scenario.name for service in SERVICES for scenario in service.scenarios()),
}
OF_THE_QUICK_START: Final = "hello-greet"
QUEUES: Final = {policy.queue for policies in messages_page.SECTIONS.values() for policy in policies} | {
    OF_THE_QUICK_START
}


class Unknown(AssertionError):
    pass


@pytest.fixture(autouse=True)
def no_service_is_named_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parsing `--service` sets the variable for child processes."""
    monkeypatch.setenv(SERVICE_MODULES, "")


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_every_command_of_a_document_is_accepted(path: Any) -> None:
    for line in commands(path.read_text(encoding="utf-8")):
        check(line)


def test_every_example_of_the_help_texts_is_accepted() -> None:
    examples = [line for command in _all_commands(COMMANDS) for line in _examples(command.help or "")]
    assert len(examples) > 20
    for line in examples:
        check(line)


@pytest.mark.parametrize(
    "words",
    [
        ("payonce", "queues", "redriven"),
        ("payonce", "queues", "peek", "tally-changes", "--stat", "parked"),
        ("payonce", "queues", "peek", "tally"),
        ("payonce", "freeze", "lift", "3"),
        ("payonce", "run", "tally"),
        ("payonce", "demo", "payout"),
        ("payonce", "keys", "add", "ada", "--scope", "queue:read"),
        ("./dev", "tests"),
        ("./dev", "test", "tests/nowhere"),
    ],
)
def test_a_command_that_is_not_there_is_found(words: tuple[str, ...]) -> None:
    with pytest.raises(Unknown):
        check(Line(words, whole=True))


def check(line: Line) -> None:
    program, *words = [word.strip("[]") for word in line.words if word.strip("[]")]
    text = " ".join(line.words)
    if not words or PLACEHOLDER.fullmatch(words[0]):
        return
    if program == "./dev" and words[0] not in DEV.PRODUCT_COMMANDS:
        if words[0] not in DEV.REPOSITORY_COMMANDS:
            raise Unknown(f"{text}: ./dev has no such command")
        for word in words[1:]:
            if word.startswith("tests/") and not (ROOT / word).exists():
                raise Unknown(f"{text}: there is no {word}")
        return
    if words[0].startswith("-"):
        return
    command, rest = _resolved(words, text)
    if not rest or rest[-1] == "…":
        return
    _check_values(words, text)
    if not line.whole and rest[-1].startswith("--") and _option(command, rest[-1]):
        # Prose that names an option, and leaves its value and all else to the reader.
        return
    try:
        command.make_context("payonce", list(rest))
    except Exception as error:
        if _about_a_placeholder(error, rest):
            return
        raise Unknown(f"{text}: {error}") from error


def _about_a_placeholder(error: Exception, words: Sequence[str]) -> bool:
    """The error is about a number or a file that the reader fills in, not about a missing option."""
    bad_value = type(error).__name__ in ("BadParameter", "Invalid")
    return bad_value and any(PLACEHOLDER.fullmatch(word) for word in words)


def _resolved(words: Sequence[str], text: str) -> tuple[Any, Sequence[str]]:
    command: Any = COMMANDS
    for place, word in enumerate(words):
        known = getattr(command, "commands", None)
        if known is None:
            return command, words[place:]
        if word not in known:
            if word.startswith("-") or PLACEHOLDER.fullmatch(word):
                return command, ()
            raise Unknown(f"{text}: payonce has no such command")
        command = known[word]
    return command, ()


def _option(command: Any, word: str) -> bool:
    if any(word in (*parameter.opts, *parameter.secondary_opts) for parameter in command.params):
        return True
    raise Unknown(f"{command.name} has no option {word}")


def _check_values(words: Sequence[str], text: str) -> None:
    """Names of roles, queues, scopes, demonstrations and scenarios, which the parser takes as any text."""
    group, *rest = words
    scopes = [value for option, value in itertools.pairwise(words) if option == "--scope"]
    known: dict[str, tuple[Sequence[str], Any]] = {
        "run": (_before_options(rest), ROLES),
        "demo": (_before_options(rest), demonstrations()),
        "queues": (rest[1:2] if rest[0] in ("put", "peek", "show", "pause", "resume", "redrive") else [], QUEUES),
        "keys": (scopes, SCOPES),
        "crash": (_before_options(rest), SCENARIOS),
    }
    chosen, names = known.get(group, ((), ()))
    if missing := [name for name in chosen if name not in names and not PLACEHOLDER.fullmatch(name)]:
        raise Unknown(f"{text}: there is no {missing[0]}")


def _before_options(words: Sequence[str]) -> list[str]:
    return list(itertools.takewhile(lambda word: not word.startswith("-"), words))


def _all_commands(command: Any) -> Iterator[Any]:
    yield command
    for each in getattr(command, "commands", {}).values():
        yield from _all_commands(each)


def _examples(text: str) -> Iterator[Line]:
    """The lines below `Examples:`, without the comment after two spaces, and after `Example:`."""
    for found in re.findall(r"^(?:Example:|  (?:.*\| )?(?=payonce )) *(.*)$", text, re.MULTILINE):
        yield from commands(f"```sh\n{found.split('  ')[0]}\n```")


def _load_dev() -> Any:
    loader = importlib.machinery.SourceFileLoader("dev_script", str(ROOT / "dev"))
    spec = importlib.util.spec_from_loader("dev_script", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


DEV: Final = _load_dev()
