"""The code blocks in the documents run as they stand."""

import asyncio
import re
from pathlib import Path

import pytest

from payonce import embedded

DOCS = Path(__file__).parents[2] / "docs"


def python_blocks(name: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / name).read_text(encoding="utf-8"), re.DOTALL)


def test_the_first_handler_of_the_quick_start_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [program] = python_blocks("quick-start.md")
    names: dict[str, object] = {"__name__": "quick_start"}
    exec(compile(program, "quick-start.md", "exec"), names)  # noqa: S102 - it is our own document
    folder = tmp_path / "postgres"
    try:
        asyncio.run(names["main"](folder))  # type: ignore[operator]
    finally:
        embedded.reset(folder)
    assert capsys.readouterr().out.startswith("1 greeting")


def test_the_example_of_the_testing_page_passes(pytester: pytest.Pytester) -> None:
    plugin_line, example = python_blocks("testing.md")
    pytester.makeconftest(plugin_line)
    pytester.makepyfile(example)
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)


@pytest.mark.parametrize("name", sorted(path.name for path in DOCS.glob("*.md")))
def test_links_lead_somewhere(name: str) -> None:
    text = (DOCS / name).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (DOCS / target).exists(), f"{name} links to {target}, which is not there"
