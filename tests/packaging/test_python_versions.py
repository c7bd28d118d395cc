"""The unit tests on every Python of the classifiers that this machine has, with the wheel and its extras."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from tests.packaging.conftest import ROOT, open_folder
from tests.packaging.test_wheel import PROJECT

LIMIT_S: Final = 300
TOOLS: Final = ("pytest", "pytest-timeout", "hypothesis")
WITHOUT: Final = ("test_house_rules.py", "test_platform_names.py", "test_public_api.py")
"""They read the texts of the repository, which are the same on every version."""


def versions() -> list[str]:
    return [name.rpartition(" ")[2] for name in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", name)]


def installed() -> Iterator[Path]:
    """The interpreters of the other versions: on the PATH, or installed by pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", str(Path.home() / ".pyenv")))
    for version in versions():
        if version != ".".join(map(str, sys.version_info[:2])):
            on_path = [Path(folder, f"python{version}") for folder in os.environ["PATH"].split(os.pathsep)]
            candidates = (*on_path, *pyenv.glob(f"versions/{version}.*/bin/python"))
            found = [python for python in candidates if answers(python, version)]
            yield from found[:1]


def answers(python: Path, version: str) -> bool:
    """Whether this is a Python of that version; a shim of pyenv may be none."""
    if not python.exists():
        return False
    script = "import sys; print('{}.{}'.format(*sys.version_info))"
    ended = subprocess.run([str(python), "-c", script], capture_output=True, text=True, check=False)
    return ended.stdout.strip() == version


def called(command: Sequence[str], environment: dict[str, str]) -> str:
    ended = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.timeout(3 * LIMIT_S)
def test_the_unit_tests_pass_on_every_installed_version(payonce_wheel: Path, dev: Any) -> None:
    lock = str(ROOT / "requirements" / "dev.lock")
    for python in installed():
        with open_folder() as folder:
            own = folder / "venv" / "bin" / "python"
            uv, environment = dev.find_uv(), dev.uv_environment()
            called([uv, "venv", "--quiet", "--python", str(python), str(folder / "venv")], environment)
            wanted = [f"payonce[all] @ {payonce_wheel.as_uri()}", *TOOLS]
            called([uv, "pip", "install", "--quiet", "--python", str(own), "-c", lock, *wanted], environment)
            left_out = [f"--ignore=tests/unit/{name}" for name in WITHOUT]
            run = [str(own), "-m", "pytest", "-q", "-o", f"cache_dir={folder / 'cache'}", "tests/unit", *left_out]
            clean = {name: text for name, text in os.environ.items() if not name.startswith(("PYTEST", "PYTHON"))}
            assert re.search(r"\d+ passed", called(run, clean))
