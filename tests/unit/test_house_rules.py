"""The house rules that no linter knows. Each rule is a function from a text to the lines that break it,
is held against the whole house, and is proven able to fail on a planted violation."""

import ast
import fnmatch
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

Rule = Callable[[str], list[int]]

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "payonce"
FILE_MAX_LINES = 400
FUNCTION_MAX_LINES = 70
FORMATTED_BY_HAND_MAX = 12
FORBIDDEN_MODULE_NAMES = frozenset(
    {"util", "utils", "helper", "helpers", "common", "manager", "managers", "base", "misc"}
)
MONEY_MODULES = ("kit/money.py", "engine/ledger/*.py")

# Spelled in parts, so that this file keeps the rules it states.
UNFINISHED = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X")) + r")\b")
REGISTRIES = re.compile("|".join(re.escape(f"{name}.org") for name in ("pypi", "pythonhosted", "registry.npmjs")))
MACHINE_PATHS = re.compile(r"(?<![\w.~$}*-])/(" + "|".join(("root", "work", "opt", "home/[a-z]+")) + r")/")

DATABASE_CLOCKS = re.compile(
    r"\b(now|clock_timestamp|statement_timestamp|transaction_timestamp|timeofday)\s*\("
    r"|\b(current_timestamp|current_date|current_time|localtimestamp|localtime)\b"
    r"|'(now|today|tomorrow|yesterday)'",
    re.IGNORECASE,
)
CLOCK_DEFINITION = re.compile(
    r"create\s+(or\s+replace\s+)?function\s+payonce\.(due_now|lease_now)\s*\(\s*\)"
    r"(?:(?!\$\w*\$|;).)*(?:(?P<quote>\$\w*\$).*?(?P=quote)[^;]*)?;",
    re.IGNORECASE | re.DOTALL,
)
# The text by which start-up recognises the genuine clocks.
GENUINE_CLOCK = "'RETURN statement_timestamp()'"
SQL_COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)


def database_clock_in_sql(text: str) -> list[int]:
    """Time in SQL is `payonce.due_now()` or `payonce.lease_now()`, which a test can move; only they ask the server."""
    kept = SQL_COMMENT.sub(blank, text)
    kept = CLOCK_DEFINITION.sub(blank, kept).replace(GENUINE_CLOCK, "")
    return [line_at(kept, match.start()) for match in DATABASE_CLOCKS.finditer(kept)]


def database_clock_in_python(text: str) -> list[int]:
    """The same for the statements inside Python."""
    tree = ast.parse(text)
    prose = {id(node) for node in docstrings(tree)}
    strings = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return [node.lineno for node in strings if id(node) not in prose and database_clock_in_sql(str(node.value))]


def floats(text: str) -> list[int]:
    """No float touches money: neither the type nor a literal."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(text))
        if (isinstance(node, ast.Name) and node.id == "float")
        or (isinstance(node, ast.Constant) and isinstance(node.value, float))
    ]


def unfinished_work(text: str) -> list[int]:
    """Open work belongs in an issue, not in a comment."""
    return lines_with(UNFINISHED, text)


def missing_docstring(text: str) -> list[int]:
    """A module says in its first sentence what lives there."""
    return [] if ast.get_docstring(ast.parse(text)) else [1]


def long_file(text: str) -> list[int]:
    """A file that outgrows this splits along a noun."""
    return [FILE_MAX_LINES + 1] if len(text.splitlines()) > FILE_MAX_LINES else []


def long_functions(text: str) -> list[int]:
    """A function fits a screen."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or node.lineno) - node.lineno + 1 > FUNCTION_MAX_LINES
    ]


def own_connections(text: str) -> list[int]:
    """Connections are opened by engine/database/sessions.py, and hosts.py beside it, which sets them up and
    reads the settings back."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute)
        and node.attr in ("connect", "create_pool")
        and isinstance(node.value, ast.Name)
        and node.value.id == "asyncpg"
    ]


def sleeps(text: str) -> list[int]:
    """Waiting is a message with a later time, and a test moves the clock; `sleep(0)` only yields."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
        and (name := node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", ""))
        and name == "sleep"
        and any(
            isinstance(argument, ast.Constant) and isinstance(argument.value, int | float) and argument.value > 0
            for argument in [*node.args, *(keyword.value for keyword in node.keywords)]
        )
    ]


def not_a_pin(text: str) -> list[int]:
    """A lock holds exact versions, each with its hashes, and no address of where they came from."""
    lines = text.splitlines()
    pin = re.compile(r"[a-z0-9-]+(\[[a-z0-9,-]+\])?==[\w.+!]+( ; [\w '\"=<>!.()]+)? \\")
    digest = re.compile(r"    --hash=sha256:[0-9a-f]{64}( \\)?")
    broken = []
    for number, line in enumerate(lines, start=1):
        is_pin, is_digest = pin.fullmatch(line), digest.fullmatch(line)
        followed = number < len(lines) and digest.fullmatch(lines[number]) is not None
        if not (is_pin or is_digest) or line.endswith("\\") != followed:
            broken.append(number)
    return broken


def addresses_of_a_machine(text: str) -> list[int]:
    """The repository works behind any mirror and in any folder."""
    return sorted({*lines_with(REGISTRIES, text), *lines_with(MACHINE_PATHS, text)})


def forbidden_module_name(path: str) -> list[int]:
    """A name that says nothing collects everything."""
    return [1] if any(Path(part).stem in FORBIDDEN_MODULE_NAMES for part in Path(path).parts) else []


def tracked() -> Iterator[Path]:
    """Every file of the house: what git would see, also where there is no git."""
    ignored = [line.rstrip("/") for line in (ROOT / ".gitignore").read_text().split()] + [".git"]
    for folder, folders, names in os.walk(ROOT):
        kept = [name for name in folders if not any(fnmatch.fnmatch(name, pattern) for pattern in ignored)]
        folders[:] = sorted(kept)
        for name in sorted(names):
            if not any(fnmatch.fnmatch(name, pattern) for pattern in [*ignored, ".git"]):
                yield Path(folder, name)


def written() -> list[Path]:
    """Text files only: the bytes of a picture can spell anything by chance."""
    return [path for path in tracked() if path.suffix != ".png"]


def python_sources() -> Iterable[Path]:
    return sorted(SOURCE.rglob("*.py"))


def sql_sources() -> Iterable[Path]:
    return sorted(SOURCE.rglob("*.sql"))


def outside_testing(paths: Iterable[Path]) -> list[Path]:
    """`payonce.testing` replaces the two clock functions, so it alone may name the server's clock."""
    return [path for path in paths if not path.is_relative_to(SOURCE / "testing")]


def connecting_is_forbidden() -> list[Path]:
    """Benchmarks connect as their peers do, tests and the private server's launcher as superuser."""
    allowed = ("embedded", "engine/database/hosts.py", "engine/database/sessions.py")
    paths = outside_testing(python_sources())
    return [path for path in paths if not any(path.is_relative_to(SOURCE / each) for each in allowed)]


def waiting_is_forbidden() -> Iterable[Path]:
    handlers = [path for path in python_sources() if path.name == "handlers.py"]
    services = [path for room in ("services", "examples") for path in sorted((SOURCE / room).rglob("*.py"))]
    return sorted({*handlers, *services, *(ROOT / "tests").rglob("*.py")})


HOUSE: dict[Rule, Callable[[], Iterable[Path]]] = {
    database_clock_in_sql: lambda: outside_testing(sql_sources()),
    database_clock_in_python: lambda: outside_testing(python_sources()),
    floats: lambda: [path for name in MONEY_MODULES for path in sorted(SOURCE.glob(name))],
    unfinished_work: written,
    missing_docstring: python_sources,
    long_file: lambda: [*python_sources(), *sql_sources()],
    long_functions: python_sources,
    sleeps: waiting_is_forbidden,
    own_connections: connecting_is_forbidden,
    not_a_pin: lambda: sorted((ROOT / "requirements").glob("*.lock")),
    addresses_of_a_machine: written,
}


@pytest.mark.parametrize("rule", HOUSE, ids=lambda rule: rule.__name__)
def test_the_house_keeps(rule: Rule) -> None:
    broken = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in HOUSE[rule]()
        for line in rule(path.read_text(encoding="utf-8", errors="replace"))
    ]
    assert not broken, f"{rule.__doc__}\n" + "\n".join(broken)


def test_every_module_name_says_something() -> None:
    names = [str(path.relative_to(SOURCE)) for path in python_sources()]
    assert not [name for name in names if forbidden_module_name(name)], forbidden_module_name.__doc__


def test_the_formatter_decides_but_for_a_dozen_tables() -> None:
    skipped = [
        path for path in tracked() if path.suffix == ".py" for _ in re.finditer("# fmt: " + "skip", path.read_text())
    ]
    assert len(skipped) <= FORMATTED_BY_HAND_MAX, skipped


def test_the_two_clocks_are_defined_in_one_migration() -> None:
    defining = [path for path in sql_sources() if CLOCK_DEFINITION.search(path.read_text())]
    assert len(outside_testing(defining)) <= 1


def test_the_job_log_is_written_in_one_module() -> None:
    writing = [path.relative_to(SOURCE) for path in python_sources() if "into payonce.job_logs" in path.read_text()]
    assert writing == [Path("engine/messages/job_log.py")]


def test_the_house_is_not_empty() -> None:
    names = {str(path.relative_to(ROOT)) for path in tracked()}
    assert {"dev", "pyproject.toml", "requirements/dev.lock", "src/payonce/__init__.py"} <= names
    assert not [name for name in names if name.startswith((".git/", ".venv"))]


LONG_BODY = "\n".join("    pass" for _ in range(FUNCTION_MAX_LINES))
HASH = "    --hash=sha256:" + "0" * 64

BROKEN: list[tuple[Rule, str]] = [
    (database_clock_in_sql, "create table t (at timestamptz default now());"),
    (database_clock_in_sql, "select 1 -- fine\nfrom t where due <= CURRENT_TIMESTAMP"),
    (database_clock_in_sql, "select clock_timestamp ( )"),
    (database_clock_in_sql, "select statement_timestamp(), transaction_timestamp(), localtimestamp"),
    (database_clock_in_sql, "select 'now'::timestamptz"),
    (
        database_clock_in_sql,
        "create function payonce.due_now() returns timestamptz language sql stable as $$ select 1 $$;\nselect now();",
    ),
    (database_clock_in_sql, "create function other.clock() returns timestamptz as $$ select now() $$;"),
    (database_clock_in_python, "QUERY = 'select now()'"),
    (database_clock_in_python, "def f(t):\n    return f'delete from {t} where at < localtimestamp'"),
    (floats, "x = float('1.1')"),
    (floats, "def f(x: float) -> None: ..."),
    (floats, "FEE = 0.3"),
    (unfinished_work, "x = 1  # " + "TO" + "DO later"),
    (unfinished_work, "-- " + "FIX" + "ME"),
    (unfinished_work, "XX" + "X"),
    (missing_docstring, "import os"),
    (missing_docstring, ""),
    (long_file, "\n" * (FILE_MAX_LINES + 1)),
    (long_functions, f"def f():\n{LONG_BODY}"),
    (long_functions, f"async def f():\n{LONG_BODY}"),
    (own_connections, "async def f():\n    return await asyncpg.connect(url)"),
    (own_connections, "pool = asyncpg.create_pool(url)"),
    (sleeps, "time.sleep(1)"),
    (sleeps, "async def f():\n    await asyncio.sleep(delay=0.01)"),
    (sleeps, "from time import sleep\nsleep(2)"),
    (not_a_pin, f"--index-url https://example.test/simple\nanyio==4.0 \\\n{HASH}"),
    (not_a_pin, f"anyio @ file:///wheels/anyio.whl \\\n{HASH}"),
    (not_a_pin, "anyio==4.0"),
    (not_a_pin, "anyio==4.0 \\"),
    (not_a_pin, f"anyio>=4.0 \\\n{HASH}"),
    (not_a_pin, f"anyio==4.0 \\\n{HASH} \\"),
    (addresses_of_a_machine, "see https://" + "pypi" + ".org/simple"),
    (addresses_of_a_machine, "https://files." + "pythonhosted" + ".org/x"),
    (addresses_of_a_machine, "open('/" + "opt/wheels')"),
    (addresses_of_a_machine, "cd /" + "root/x"),
    (addresses_of_a_machine, "/" + "work/x"),
    (addresses_of_a_machine, "/" + "home/someone/x"),
    (forbidden_module_name, "engine/utils.py"),
    (forbidden_module_name, "common/money.py"),
]

KEPT: list[tuple[Rule, str]] = [
    (database_clock_in_sql, "-- not now()\nselect payonce.due_now() /* nor localtimestamp */, known(1), due_now()"),
    (
        database_clock_in_sql,
        "create or replace function payonce.lease_now() returns timestamptz as $c$ select now(); $c$ language sql;",
    ),
    (
        database_clock_in_sql,
        "create function payonce.due_now() returns timestamptz language sql stable return statement_timestamp();",
    ),
    (database_clock_in_sql, f"select pg_get_function_sqlbody(oid) = {GENUINE_CLOCK} from pg_proc"),
    (database_clock_in_python, '"""Never now()."""\nQUERY = "select payonce.due_now()"\nlater = clock.now()'),
    (floats, "x = int('1')"),
    (unfinished_work, "todo_list = []"),
    (missing_docstring, '"""What lives here."""'),
    (long_file, "\n" * FILE_MAX_LINES),
    (long_functions, "def f():\n    pass"),
    (own_connections, "async def f():\n    return await sessions.connect(url) or asyncpg.Connection"),
    (sleeps, "async def f():\n    await asyncio.sleep(0)\n    await asyncio.sleep(delay)"),
    (not_a_pin, f"psycopg[binary,pool]==3.2 ; sys_platform == 'win32' \\\n{HASH} \\\n{HASH}"),
    (addresses_of_a_machine, "src/" + "work/x and $HOME/" + "opt/x and /usr/lib/postgresql"),
    (forbidden_module_name, "engine/baseline.py"),
]


@pytest.mark.parametrize(("rule", "text"), BROKEN)
def test_a_planted_violation_is_found(rule: Rule, text: str) -> None:
    assert rule(text)


@pytest.mark.parametrize(("rule", "text"), KEPT)
def test_what_keeps_the_rule_passes(rule: Rule, text: str) -> None:
    assert rule(text) == []


def test_every_rule_is_proven_able_to_fail() -> None:
    assert {rule for rule, _ in BROKEN} == {rule for rule, _ in KEPT} == {*HOUSE, forbidden_module_name}


def lines_with(pattern: re.Pattern[str], text: str) -> list[int]:
    return [number for number, line in enumerate(text.splitlines(), start=1) if pattern.search(line)]


def line_at(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def blank(match: re.Match[str]) -> str:
    """Nothing in as many lines, so that later lines keep their numbers."""
    return "\n" * match.group().count("\n")


def docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                yield first.value
