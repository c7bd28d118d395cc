"""The two services of billing are two: no SQL statement of one names a table or function of the other."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import payonce.services.billing as billing
from payonce.engine.database.sessions import connect
from payonce.services.billing import payments, subscriptions
from payonce.testing import ScratchDatabase

FOLDER: Final = Path(str(billing.__file__)).parent
NAMES: Final = re.compile(r"create (?:or replace )?(?:table|view|function) (subscriptions|payments)\.(\w+)")


def objects_of(schema: str) -> set[str]:
    """The tables, views and functions that the migrations create in a schema."""
    text = "\n".join(path.read_text() for path in sorted((FOLDER / "migrations").glob("*.sql")))
    return {f"{found}.{name}" for found, name in NAMES.findall(text) if found == schema}


def texts_in(path: Path) -> Iterator[tuple[int, str]]:
    """Every string of a module that is no docstring."""
    tree = ast.parse(path.read_text())
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.lineno, node.value


def foreign(folder: Path, schema: str) -> list[str]:
    names = objects_of(schema)
    return [
        f"{path.name}:{line}: {name}"
        for path in sorted(folder.rglob("*.py"))
        for line, text in texts_in(path)
        for name in re.findall(rf"\b{schema}\.\w+", text)
        if name in names
    ]


def test_the_schemas_are_read_from_the_migrations() -> None:
    assert {"subscriptions.accounts", "subscriptions.invoices", "subscriptions.time_of"} <= objects_of("subscriptions")
    assert {"payments.transactions", "payments.refunds", "payments.going_back"} <= objects_of("payments")


@pytest.mark.parametrize(("folder", "schema"), [("subscriptions", "payments"), ("payments", "subscriptions")])
def test_no_statement_of_one_names_what_is_the_others(folder: str, schema: str) -> None:
    assert foreign(FOLDER / folder, schema) == []
    assert foreign(FOLDER / schema, schema), "a check that finds nothing anywhere is none"


def test_what_both_share_names_no_table_of_either() -> None:
    shared = sorted(FOLDER.glob("*.py"))
    assert shared
    for schema in ("subscriptions", "payments"):
        names = objects_of(schema)
        found = [
            (path.name, name)
            for path in shared
            for _, text in texts_in(path)
            for name in re.findall(rf"\b{schema}\.\w+", text)
            if name in names
        ]
        assert found == []


@pytest.mark.parametrize(("schema", "other"), [("subscriptions", "payments"), ("payments", "subscriptions")])
async def test_nothing_in_the_store_of_one_leads_to_the_other(
    scratch: ScratchDatabase, schema: str, other: str
) -> None:
    """Bodies of functions, definitions of views, foreign keys and triggers, as the migrations leave them."""
    owner = await connect(scratch.owner_url)
    try:
        texts = await owner.fetch(
            """
            select p.proname as name, p.prosrc as text from pg_proc p where p.pronamespace = $1::regnamespace
            union all select viewname, definition from pg_views where schemaname = $1::text
            """,
            schema,
        )
        links = await owner.fetch(
            """
            select c.conname from pg_constraint c
            join pg_class a on a.oid = c.conrelid join pg_class b on b.oid = c.confrelid
            where a.relnamespace = $1::regnamespace and b.relnamespace = $2::regnamespace
            union all
            select t.tgname from pg_trigger t join pg_class a on a.oid = t.tgrelid join pg_proc p on p.oid = t.tgfoid
            where a.relnamespace = $1::regnamespace and p.pronamespace = $2::regnamespace
            """,
            schema,
            other,
        )
    finally:
        await owner.close()
    assert texts
    assert [row["name"] for row in texts if re.search(rf"\b{other}\.", row["text"])] == []
    assert [row["conname"] for row in links] == []


def test_no_invariant_and_no_reference_names_both() -> None:
    for part, schema in ((subscriptions, "payments"), (payments, "subscriptions")):
        queries = [*part.INVARIANTS.values(), *part.REFERENCES.values(), part.NAMES]
        names = objects_of(schema)
        assert not [name for query in queries for name in re.findall(rf"\b{schema}\.\w+", query) if name in names]
