"""What services add to the command line: commands, demonstrations and options, also those of installed packages."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import typer

from payonce.app import registry
from payonce.app.registry import SERVICES, usual_ports
from payonce.cli import mounts
from payonce.cli.application import run_command
from payonce.service import Demo, Option, Service, Simulators
from payonce.services.billing.settings import PORTS

pytestmark = pytest.mark.usefixtures("restored_logs")

LOADED = """
import sys
from payonce.cli.application import run_command
run_command(["--help"])
print([name for name in sys.modules if name.startswith(("payonce.services.", "payonce.examples.", "payonce.engine"))])
"""


class Report:
    log_path = Path("nowhere.log")

    def __init__(self, **figures: Any) -> None:
        self._figures = figures

    def figures(self) -> Mapping[str, Any]:
        return self._figures

    def complaints(self) -> list[str]:
        return []

    def rendered(self) -> Any:
        return "given"


async def give(settings: object, seed: int, size: int | None, *, cards: int = 3) -> Report:
    return Report(seed=seed, size=size, cards=cards)


def commands() -> typer.Typer:
    group = typer.Typer(help="Look after gift cards.", no_args_is_help=True, rich_markup_mode=None)

    @group.command("issue")
    def issue(card: str) -> None:
        print(f"issued {card}")

    @group.command("void")
    def void(card: str) -> None:
        print(f"voided {card}")

    return group


def never_served(*_: object, **__: object) -> Any:
    raise AssertionError("only help is wanted")


GIFTCARDS = Service(
    "giftcards",
    None,
    {"worker": ()},
    commands=commands,
    demos=(
        Demo(
            "giftcards",
            give,
            "Gift cards.",
            size_flag="--holders",
            options=(Option("--cards", "Number of customers."),),
        ),
    ),
    simulators=Simulators(("mint",), (Option("--mint-port", "Port of the mint.", default=9104),), never_served),
    usual_ports={"worker": 8009},
)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "SERVICES", (*SERVICES, GIFTCARDS))
    monkeypatch.setattr(mounts, "entry_points", lambda group: ["giftcards"])


def test_the_help_of_all_commands_imports_no_service() -> None:
    ended = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    assert "payonce billing credit …  show, adjust and pay out" in ended.stdout
    assert ended.stdout.splitlines()[-1] == "[]"


def test_each_built_in_service_with_commands_is_listed_under_its_name() -> None:
    names = {each.name for each in SERVICES if each.commands is not None}
    assert {each.service for each in mounts.service_help()} == names


def test_roles_listen_on_the_ports_at_which_the_services_look_for_each_other() -> None:
    assert usual_ports() == PORTS


@pytest.mark.usefixtures("installed")
def test_the_commands_of_an_installed_service_are_mounted(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["--help"]) == 0
    assert "Look after gift cards." in capsys.readouterr().out
    assert run_command(["giftcards", "issue", "c-1"]) == 0
    assert capsys.readouterr().out == "issued c-1\n"
    assert run_command(["giftcards", "burn"]) == 2
    assert "see: payonce giftcards --help" in capsys.readouterr().err
    assert run_command(["giftcard"]) == 2


@pytest.mark.usefixtures("installed")
def test_the_demonstration_of_an_installed_service_has_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["demo", "giftcards", "--cards", "5", "--holders", "200", "--json"]) == 0
    assert capsys.readouterr().out == '{"seed":1,"size":200,"cards":5}\n'
    assert run_command(["demo", "giftcards", "--json"]) == 0
    assert capsys.readouterr().out == '{"seed":1,"size":null,"cards":3}\n'
    assert run_command(["demo", "queue", "--cards", "5"]) == 2
    assert "--cards is of the demonstration giftcards; leave it out" in capsys.readouterr().err
    assert run_command(["demo", "--help"]) == 0
    said = capsys.readouterr().out
    assert "Of giftcards: Number of customers." in said
    assert "giftcards: Gift cards." in said


@pytest.mark.usefixtures("installed")
def test_the_help_of_run_and_simulators_says_what_services_declare(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["run", "--help"]) == 0
    assert "giftcards.worker alone on 8009, the first of each on a machine." in " ".join(
        capsys.readouterr().out.split()
    )
    assert run_command(["simulators", "--help"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "simulated ChangeNOW, chain, card gateway and mint for roles of payouts, billing and giftcards" in said
    assert "--mint-port" in said
