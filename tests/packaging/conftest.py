"""Wheels in empty virtual environments, and payonce as it runs there."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any, Final

import pytest

from payonce.testing.processes import clean_environment

ROOT: Final = Path(__file__).parents[2]
BUILD: Final = "import sys; from hatchling.build import build_wheel; build_wheel(sys.argv[1])"
LIMIT_S: Final = 120
OF_THE_CHECKOUT: Final = ("PYTHON", "VIRTUAL_ENV", "XDG_")
"""How the variables begin that would lead a process back to this checkout, or to the user's own data."""


def build_wheel(project: Path, into: Path) -> Path:
    """The wheel of a project, which is built from a copy: a build leaves nothing in the checkout."""
    copy = into / f"source-{project.name}"
    left_out = shutil.ignore_patterns(".*", "dist", "tests", "bench", "__pycache__")
    shutil.copytree(project, copy, ignore=left_out)
    wheels = into / f"wheel-{project.name}"
    wheels.mkdir()
    subprocess.run([sys.executable, "-c", BUILD, str(wheels)], cwd=copy, check=True, timeout=LIMIT_S)
    [wheel] = wheels.glob("*.whl")
    return wheel


@dataclass
class Installed:
    """A virtual environment, and an empty folder in which its commands run."""

    bin: Path
    folder: Path
    running: list["subprocess.Popen[str]"] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: text for name, text in clean_environment().items() if not name.startswith(OF_THE_CHECKOUT)}
        home = self.folder.parent / "home"
        return {**kept, "HOME": str(home), "PATH": f"{self.bin}{os.pathsep}{kept['PATH']}"}

    def run(self, *command: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [str(self.bin / command[0]), *command[1:]],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )

    def __call__(self, *command: str, code: int = 0) -> str:
        """What the command prints on stdout; it must end with this exit code."""
        ended = self.run(*command)
        assert ended.returncode == code, f"{' '.join(command)}:\n{ended.stdout}\n{ended.stderr}"
        return ended.stdout

    def json(self, *command: str) -> Any:
        return json.loads(self("payonce", *command, "--json").splitlines()[-1])

    def start(self, *command: str) -> "subprocess.Popen[str]":
        with (self.folder.parent / f"{len(self.running)}.log").open("w") as log:
            process = subprocess.Popen(
                [str(self.bin / command[0]), *command[1:]],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                text=True,
            )
        self.running.append(process)
        return process

    def log(self, number: int = -1) -> str:
        return (self.folder.parent / f"{range(len(self.running))[number]}.log").read_text()

    def close(self) -> None:
        for process in self.running:
            process.kill()
            process.wait()
        self("payonce", "db", "stop")


Install = Callable[[Sequence[str]], Installed]


@pytest.fixture(scope="session")
def dev() -> Any:
    """The module of ./dev, which knows how packages are fetched on this machine."""
    spec = spec_from_loader("dev", SourceFileLoader("dev", str(ROOT / "dev")))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def open_folder() -> Iterator[Path]:
    """A folder that every account can enter: the private PostgreSQL may run under another one."""
    folder = Path(tempfile.mkdtemp(prefix="payonce-wheel-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def payonce_wheel() -> Iterator[Path]:
    with open_folder() as folder:
        yield build_wheel(ROOT, folder)


@pytest.fixture
def install(dev: Any) -> Iterator[Install]:
    """Makes an empty virtual environment with these requirements, at the versions of the locks."""
    with open_folder() as folder:
        made: list[Installed] = []

        def installed(requirements: Sequence[str]) -> Installed:
            venv, empty = folder / ".venv", folder / "empty"
            empty.mkdir()
            (folder / "home").mkdir()
            uv, environment = dev.find_uv(), dev.uv_environment()
            lock = str(ROOT / "requirements" / "dev.lock")
            for command in (
                ["venv", "--quiet", "--python", sys.executable, str(venv)],
                ["pip", "install", "--quiet", "--python", str(venv / "bin" / "python"), "-c", lock, *requirements],
            ):
                subprocess.run([uv, *command], env=environment, check=True, timeout=LIMIT_S)
            found = Installed(venv / "bin", empty)
            made.append(found)
            return found

        yield installed
        for each in made:
            each.close()
