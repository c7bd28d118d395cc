"""Extracts names from the documents: commands, settings, shell variables, routes, links, files and tests."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
DOCUMENTS: Final = sorted(
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "src").rglob("README.md")]
)
"""All pages for readers, except decisions: they record a state of the past."""

_FENCE: Final = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
_SPAN: Final = re.compile(r"`([^`]+)`")
_COMMAND: Final = re.compile(r"^(?:payonce|\./dev)(?= |$)")
_ENDS: Final = ("|", "||", "&", "&&", ";", "(", ")", "()", "{", "}", ">", ">>", "<")
SHELLS: Final = ("", "sh", "text")


class Line(NamedTuple):
    """A command as a document gives it; `whole` when a reader would type it as it stands."""

    words: tuple[str, ...]
    whole: bool


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(text: str, *languages: str) -> Iterator[str]:
    for language, block in _FENCE.findall(text):
        if language in languages:
            yield block


def spans(text: str) -> list[str]:
    """The code spans outside of blocks, in one line each."""
    return [" ".join(span.split()) for span in _SPAN.findall(_FENCE.sub("", text))]


def commands(text: str) -> Iterator[Line]:
    for block in blocks(text, *SHELLS):
        for line in block.replace("\\\n", " ").splitlines():
            for words in simple_commands(line):
                yield Line(words, whole=True)
    for span in spans(text):
        for words in simple_commands(span):
            yield Line(words, whole=False)


def simple_commands(line: str) -> Iterator[tuple[str, ...]]:
    """The payonce commands in one line of shell, without the words before and after each."""
    if "payonce" not in line and "./dev" not in line:
        return
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError:
        # Prose with an apostrophe, or a program in another language.
        return
    command: list[str] = []
    for word in [*words, ";"]:
        if word in _ENDS:
            if command and _COMMAND.match(command[0]):
                yield tuple(command)
            command = []
        elif command or not re.fullmatch(r"[A-Z_]+=.*", word):
            command.append(word)


def routes(text: str) -> Iterator[tuple[str | None, str]]:
    """Methods and paths; the method is None where the document does not say it."""
    for span in spans(text):
        found = re.match(r"(?:(GET|POST|PUT|PATCH|DELETE) )?(/(?:v1|healthz|readyz|metrics|openapi)[^\s`]*)$", span)
        if found:
            yield found[1], found[2]
    for block in blocks(text, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            yield from ((None, path) for path in re.findall(r"(?<![\w.-])(/v1/[\w/{}$.?=&-]*)", line))


def shell_variables(text: str) -> tuple[set[str], set[str]]:
    """The variables that the sh blocks read, and those that they assign."""
    script = "\n".join(blocks(text, "sh"))
    read = set(re.findall(r"\$\{?([A-Za-z_]\w*)(?![\w:]*:[-?])", script))
    given = set(re.findall(r"(?:^|[\s;(])(?:export )?([A-Za-z_]\w*)=", script))
    return read, given | set(re.findall(r"\$\{(\w+):[-?]", script))


def names_in_capitals(text: str, *, but: str) -> set[str]:
    """The names outside of blocks in the language `but`."""
    text = _FENCE.sub(lambda found: "" if found[1] == but else found[0], text)
    return set(re.findall(r"(?<![\w$*/.:-])([A-Z][A-Z0-9]*(?:_+[A-Z0-9]+)+)(?![\w*-])", text))
