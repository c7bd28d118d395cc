"""One statement for many askers: how the rows of its answers are told apart."""

import re
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final, NamedTuple

from payonce.engine.company import lateral
from payonce.engine.database import Connection

ASKER: Final = lateral.ASKER

_WORDS: Final = re.compile(
    r"""'(?:[^']|'')*'|"[^"]*"|--[^\n]*|/\*.*?\*/"""
    r"|\bis(?:\s+not)?\s+distinct\s+from\b|\bwithin\s+group\b|\bas\s+[a-z_][a-z0-9_]*"
    r"|[()]|[a-z_][a-z0-9_.$]*",
    re.IGNORECASE | re.DOTALL,
)
"""Also what looks like one of the words below and is none, as a whole."""
_ENDS_A_LIST: Final = frozenset({"from", "where", "group", "having", "window", "order", "limit", "offset", "for"})
_JOINS_LISTS: Final = frozenset({"union", "intersect", "except"})
_CHANGES: Final = frozenset({"insert", "update", "delete", "merge"})


class Shape(NamedTuple):
    """What a statement does, as far as its text tells."""

    answers: bool
    """It gives rows."""
    told_apart: str | None
    """The same with the asker's number as one more parameter and column; None where that cannot be added."""
    locks: bool
    """It keeps others from the rows it gives, to the end of the transaction."""
    changes: bool
    """It changes the rows it gives."""
    table: str
    """Whose rows it reads or changes, or a part of their names. Nobody else has what is only inserted."""
    locks_arguments: bool
    """It takes a lock by what it is given, not by rows; a session that has it gets it again."""


@lru_cache(maxsize=1_000)
def shape_of(sql: str, arguments: int) -> Shape:
    words = _outer_words(sql)
    names = [word for _, word in words]
    verb = next((place for place, word in enumerate(names) if word in _CHANGES or word == "select"), None)
    locks = ("for", "update") in pairwise(names) or ("key", "update") in pairwise(names)
    by_arguments = "pg_advisory_xact_lock(" in sql
    if verb is None:
        # It may give rows all the same, as `values` does.
        return Shape(True, None, False, False, "", by_arguments)
    rest = words[verb + 1 :]
    if names[verb] == "select":
        table = _following(names[verb:], "from")
        if any(word in _JOINS_LISTS for _, word in rest):
            return Shape(True, None, locks, False, table, by_arguments)
        end = next((start for start, word in rest if word in _ENDS_A_LIST), len(sql.rstrip()))
        bare = not sql[words[verb][0] + len("select") : end].strip()
        return Shape(True, _with_asker(sql, end, arguments, bare), locks, False, table, by_arguments)
    answers = any(word == "returning" for _, word in rest)
    told_apart = _with_asker(sql, len(sql.rstrip()), arguments) if answers else None
    table = "" if names[verb] == "insert" else _following(names[verb:], "from" if names[verb] == "delete" else "update")
    return Shape(answers, told_apart, False, True, table, by_arguments)


def _with_asker(sql: str, place: int, arguments: int, bare: bool = False) -> str:
    """`bare`: there is no column yet."""
    # On a line of its own: what stands before may end with a comment.
    return f"{sql[:place].rstrip()}\n{'' if bare else ','} ${arguments + 1}::int as {ASKER} {sql[place:]}"


def _outer_words(sql: str) -> list[tuple[int, str]]:
    """The words outside of all brackets, strings and comments, with where they begin."""
    found, depth = [], 0
    for match in _WORDS.finditer(sql):
        text = match.group().lower()
        if text == "(":
            depth += 1
        elif text == ")":
            depth -= 1
        elif depth == 0 and text[0] not in "'\"-/" and " " not in text and "\n" not in text:
            found.append((match.start(), text))
    return found


def _following(names: list[str], word: str) -> str:
    places = [place for place, name in enumerate(names[:-1]) if name == word]
    return names[places[0] + 1] if places else ""


def is_sent_at_once(sql: str, arguments: int) -> bool:
    """For all askers, so that outside of a transaction it happens for all of them or for none."""
    shape = shape_of(sql, arguments)
    return not shape.answers or shape.told_apart is not None


Answer = list[Any]


async def ask_once(connection: Connection, sql: str, askers: list[tuple[Any, ...]]) -> list[Answer]:
    """As `ask`; where it only reads, who asks the same gets the same answer."""
    try:
        different = list(dict.fromkeys(askers))
    except TypeError:
        different = askers
    if len(different) == len(askers) or not (await lateral.known(connection, sql)).only_reads:
        return await ask(connection, sql, askers)
    found = dict(zip(different, await ask(connection, sql, different), strict=True))
    return [found[asker] for asker in askers]


async def ask(connection: Connection, sql: str, askers: list[tuple[Any, ...]]) -> list[Answer]:
    """One statement for each of these arguments, or for all of them, sent at once and answered in order; the rows of
    each."""
    if len(askers) == 1:
        return [await connection.fetch(sql, *askers[0])]
    shape = shape_of(sql, len(askers[0]))
    if not shape.answers:
        await connection.executemany(sql, askers)
        return [[] for _ in askers]
    if shape.told_apart is None:
        return [await connection.fetch(sql, *arguments) for arguments in askers]
    if (for_all := (await lateral.known(connection, sql)).for_all) is not None:
        return _told_apart(await connection.fetch(for_all, *map(list, zip(*askers, strict=True))), len(askers), 1)
    numbered = [(*arguments, number) for number, arguments in enumerate(askers)]
    return _told_apart(await connection.fetchmany(shape.told_apart, numbered), len(askers), 0)


def _told_apart(rows: list[Any], askers: int, first: int) -> list[Answer]:
    """`first` is the number of the first asker."""
    answers: list[Answer] = [[] for _ in range(askers)]
    for row in rows:
        answers[row[-1] - first].append(row)
    return answers
