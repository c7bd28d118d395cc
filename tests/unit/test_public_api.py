"""What a service is written with: a few public modules, which load a name when it is used, and nothing internal."""

import ast
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

import payonce
from tests.docs.documents import DOCUMENTS, ROOT, blocks, name_of

LAZY = ("payonce", "payonce.http.kit", "payonce.console.kit", "payonce.cli.demo.kit", "payonce.testing")
"""The public modules that export names of others."""
PUBLIC = re.compile(
    r"payonce(\.(http\.kit|console\.kit|cli\.demo\.kit|testing(\.(crash|cluster|plugin))?|vendors(\.\w+)*))?"
)
ALLOWED_WHEN_IMPORTED = ("payonce", "payonce.kit", "payonce.kit.lazy", "payonce.kit.version")
EXAMPLES = ROOT / "src" / "payonce" / "examples"
GIFTCARDS = ROOT / "examples" / "giftcards"


def imported(text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The modules of payonce that a program or a fragment of a function imports, and the names that it takes."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "payonce":
            yield str(node.module), tuple(alias.name for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((each.name, ()) for each in node.names if each.name.partition(".")[0] == "payonce")


def internal(text: str, own: str = "") -> list[str]:
    """The imports of internal modules, and of names that a public module does not export; `own` is their package."""
    found = []
    for module, names in imported(text):
        if own and (module == own or module.startswith(f"{own}.")):
            continue
        if not PUBLIC.fullmatch(module):
            found.append(module)
        elif module in LAZY:
            exported = import_module(module).__all__
            found += [f"{module}.{name}" for name in names if name not in exported]
    return found


@pytest.mark.parametrize("module", LAZY)
def test_the_checker_and_the_program_see_the_same_names(module: str) -> None:
    package = import_module(module)
    tree = ast.parse(Path(str(package.__file__)).read_text(encoding="utf-8"))
    [guarded] = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    checked = {(str(node.module), each.name) for node in guarded.body for each in node.names}  # type: ignore[attr-defined]
    loaded = {(home, name) for home, names in package._HOMES.items() for name in names.split()}
    assert checked == loaded
    assert {name for _, name in loaded} <= set(package.__all__)
    assert set(package.__all__) <= set(dir(package))


@pytest.mark.parametrize("module", LAZY)
def test_every_public_name_is_there(module: str) -> None:
    package = import_module(module)
    assert [name for name in package.__all__ if getattr(package, name) is None] == []
    assert len(package.__all__) == len(set(package.__all__))


@pytest.mark.parametrize("module", LAZY)
def test_no_lazy_name_is_that_of_a_module_beside_it(module: str) -> None:
    package = import_module(module)
    if hasattr(package, "__path__"):
        names = [name for names in package._HOMES.values() for name in names.split()]
        assert [name for name in names if find_spec(f"{module}.{name}") is not None] == []


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'payonce' has no attribute 'Polcy'"):
        _ = payonce.Polcy  # type: ignore[attr-defined]


def test_importing_payonce_loads_nothing_else() -> None:
    script = "import sys, payonce; print([name for name in sys.modules if name.startswith('payonce')])"
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert sorted(ast.literal_eval(said)) == sorted(ALLOWED_WHEN_IMPORTED)


def test_a_missing_package_is_named_with_its_extra() -> None:
    script = "import sys; sys.modules['jinja2'] = None; from payonce.console.kit import Page"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "payonce.console.kit.Page needs the package jinja2; run: pip install 'payonce[console]'" in ended.stderr


def test_the_page_on_the_public_api_lists_every_name() -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8").partition("## Names of `payonce`")[2]
    columns = [line.split("|")[2] for line in page.splitlines() if line.startswith("| ")][1:]
    named = [name for column in columns for name in re.findall(r"`(\w+)`", column)]
    assert sorted(named) == sorted({*payonce.__all__} - {"__version__"})


@pytest.mark.parametrize("path", sorted([*EXAMPLES.rglob("*.py"), *GIFTCARDS.rglob("*.py")]), ids=name_of)
def test_examples_import_nothing_internal(path: Path) -> None:
    assert internal(path.read_text(encoding="utf-8"), own="payonce.examples") == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_documents_import_nothing_internal(path: Path) -> None:
    for block in blocks(path.read_text(encoding="utf-8"), "python"):
        assert internal(f"async def fragment():\n{textwrap.indent(block, '    ')}") == []


@pytest.mark.parametrize(
    "text",
    [
        "from payonce.engine.ledger import balance",
        "from payonce.api import Policy",
        "import payonce.settings",
        "from payonce import Worker",
        "from payonce.http.kit import identified",
        "from payonce.http.kit.auth import require",
        "def f():\n    from payonce.cli.output import table",
    ],
)
def test_a_planted_internal_import_is_found(text: str) -> None:
    assert internal(text)


def test_public_imports_pass() -> None:
    text = "from payonce import Policy\nfrom payonce.testing.crash import explore\nfrom payonce.vendors.evm import port"
    assert internal(text) == []
