"""The wheel: its extras, its metadata, and the pages for readers who have only the package."""

import re
import tomllib
from email.parser import Parser
from pathlib import Path
from typing import Any, Final
from zipfile import ZipFile

import pytest

from tests.docs.documents import ROOT, blocks

PROJECT: Final[Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: Final[dict[str, list[str]]] = PROJECT["optional-dependencies"]
README: Final = (ROOT / "PACKAGE.md").read_text(encoding="utf-8")
INSTALLING: Final = (ROOT / "docs" / "installing.md").read_text(encoding="utf-8")


def test_the_extra_all_has_every_other_extra() -> None:
    [everything] = EXTRAS["all"]
    assert everything == f"payonce[{','.join(sorted(EXTRAS.keys() - {'all'}))}]"


@pytest.mark.parametrize("text", [README, INSTALLING], ids=["PACKAGE.md", "docs/installing.md"])
def test_every_extra_is_explained(text: str) -> None:
    assert set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)) == EXTRAS.keys()


def test_every_extra_that_a_sentence_names_is_there() -> None:
    sources = [*(ROOT / "src").rglob("*.py"), *(ROOT / "src").rglob("*.md"), *(ROOT / "docs").glob("*.md")]
    named = {
        extra
        for path in sources
        for extras in re.findall(r"payonce\[([\w,]+)\]", path.read_text(encoding="utf-8"))
        for extra in extras.split(",")
    }
    # `giftcards` stands for the extra of a service in a docstring.
    assert named - {"giftcards"} <= EXTRAS.keys()


def test_the_readme_of_the_package_leads_to_nothing_outside_of_it() -> None:
    assert re.findall(r"\]\((?!https://)", README) == []
    assert list(blocks(README, "python")) == list(blocks((ROOT / "docs" / "quick-start.md").read_text(), "python"))


def test_the_wheel_is_typed_and_has_the_pages(payonce_wheel: Path) -> None:
    with ZipFile(payonce_wheel) as wheel:
        names = set(wheel.namelist())
        [metadata] = [name for name in names if name.endswith(".dist-info/METADATA")]
        said = Parser().parsestr(wheel.read(metadata).decode())
    assert {"payonce/py.typed", "payonce/docs/quick-start.md", "payonce/docs/api.md"} <= names
    assert said["Description-Content-Type"] == "text/markdown"
    versions = [text.rpartition(" ")[2] for text in said.get_all("Classifier") or [] if "Python :: 3." in text]
    assert versions == ["3.11", "3.12", "3.13"]
    assert set(said.get_all("Provides-Extra") or []) == EXTRAS.keys()
