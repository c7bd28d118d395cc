"""A statement that reads, as one for many askers: what it costs beside its rows is paid once.

The server is asked once about each text: of which types its arguments are, and whether what it calls may change
something. Where any of it is in doubt, there is no such form, and the statement is sent for each asker.
"""

import re
from contextlib import nullcontext
from typing import Final, NamedTuple

import asyncpg

from payonce.engine.database import Connection

ASKER: Final = "asker__"
"""The last column of every row: whose answer it belongs to."""

MOST_KNOWN: Final = 1_000
"""Texts: more than a process has."""

_PIECES: Final = re.compile(
    r"""(?P<nothing>--[^\n]*|/\*.*?\*/)|(?P<argument>\$[0-9]+)|(?P<word>[a-z_][a-z0-9_.$]*)"""
    r"""|(?P<name>"[^"]*")|(?P<other>'(?:[^']|'')*'|\S)""",
    re.IGNORECASE | re.DOTALL,
)
_STRANGE: Final = re.compile(r"""\$(?:[^\W\d]\w*)?\$|"\s*\(""")
"""Strings between dollars, and calls by a name in quotes."""
_BOUNDS: Final = frozenset({"limit", "offset", "fetch"})
_TYPES: Final = frozenset(
    {"bool", "int2", "int4", "int8", "float8", "numeric", "text", "varchar", "bpchar", "bytea", "uuid"}
    | {"date", "timestamptz", "interval", "json", "jsonb"}
)
"""Of arguments that can be elements of an array, and are the same there."""


class Known(NamedTuple):
    """What the server told of a statement."""

    only_reads: bool
    """It may lock rows, and changes nothing."""
    for_all: str | None
    """The same for an array of each argument, its rows with their asker's place from 1; None where there is none."""


class _Text(NamedTuple):
    asking: str
    """With the asker's columns in place of its arguments."""
    calls: frozenset[str]
    """Names that a bracket follows: of functions, and some words that are none."""
    bounded: bool


_known: dict[str, Known] = {}


async def known(connection: Connection, sql: str) -> Known:
    if sql not in _known:
        if len(_known) >= MOST_KNOWN:
            _known.clear()
        _known[sql] = await _learnt(connection, sql)
    return _known[sql]


async def _learnt(connection: Connection, sql: str) -> Known:
    text = _read(sql)
    if text is None or await _may_change(connection, text.calls):
        return Known(False, None)
    types = [each.name for each in (await connection.prepare(sql)).get_parameters()]
    if not types or not _TYPES.issuperset(types):
        return Known(True, None)
    for_all = _for_all(text, types)
    try:
        # A refusal ends a transaction, which is not this one's to end.
        async with connection.transaction() if connection.is_in_transaction() else nullcontext():
            await connection.prepare(for_all)
    except (asyncpg.SyntaxOrAccessError, asyncpg.FeatureNotSupportedError):
        return Known(True, None)
    return Known(True, for_all)


def _for_all(text: _Text, types: list[str]) -> str:
    arrays = ", ".join(f'${number}::pg_catalog."{name}"[]' for number, name in enumerate(types, 1))
    names = ", ".join(f"p{number}" for number in range(1, len(types) + 1))
    # Else the planner might join tables as a whole, by what it knew of them while they were empty. With a bound it
    # looks for the rows of one asker after the other, for each as if it were alone.
    bound = "" if text.bounded else "\noffset 0"
    return f"""select answered__.*, asking__.{ASKER}
        from unnest({arrays}) with ordinality as asking__ ({names}, {ASKER})
        cross join lateral ({text.asking}{bound}
        ) answered__"""


def _read(sql: str) -> _Text | None:
    """None for what is no select, and where a name, a string or a comment may be other than it looks."""
    if not sql.lstrip().lower().startswith("select") or "\\" in sql or _STRANGE.search(sql):
        return None
    found, calls, bounded = [], set(), False
    depth, done, before = 0, 0, ""
    for piece in _PIECES.finditer(sql):
        text = piece.group().lower()
        if piece["nothing"]:
            if "/*" in text[2:]:
                return None
            continue
        if piece["argument"]:
            found += [sql[done : piece.start()], f"asking__.p{text[1:]}"]
            done = piece.end()
        if text == "(" and before:
            calls.add(before.rpartition(".")[2])
        bounded = bounded or (depth == 0 and text in _BOUNDS and before != "as")
        depth += (text == "(") - (text == ")")
        before = text if piece["word"] else ""
    return _Text("".join([*found, sql[done:]]), frozenset(calls), bounded)


async def _may_change(connection: Connection, calls: frozenset[str]) -> bool:
    """Whether one of these names is that of a function, in whatever schema, that is called for more than its value."""
    looking = await connection.prepare(
        "select exists (select from pg_proc where proname = any($1::text[]::name[]) and provolatile = 'v')"
    )
    return bool(await looking.fetchval(sorted(calls)))
