"""The command `./dev` of a checkout hands on every command of `payonce`."""

import re
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest
import typer.main

from payonce.cli.application import app

DEV = Path(__file__).parents[2] / "dev"


@pytest.fixture(scope="module")
def dev() -> Any:
    spec = spec_from_loader("dev", SourceFileLoader("dev", str(DEV)))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_help_names_every_simulator(dev: Any) -> None:
    [line] = re.findall(r"^  simulators +(.*)$", dev.HELP, re.MULTILINE)
    options = [option for each in typer.main.get_group(app).commands["simulators"].params for option in each.opts]
    served = {option.removeprefix("--").removesuffix("-port") for option in options if option.endswith("-port")}
    assert served == {"exchange", "chain", "gateway"}
    assert all(name in line for name in served)


def test_every_command_is_one_of_the_checkout_and_in_its_help(dev: Any) -> None:
    commands = set(typer.main.get_group(app).commands)
    assert set(dev.PRODUCT_COMMANDS) == commands
    listed = "\n".join(re.findall(r"^  ([a-z, ]+?)(?=  |$| [A-Z[])", dev.HELP, re.MULTILINE))
    assert commands <= set(re.split(r"[,\s]+", listed))
