"""The files of simulators are their owner's alone."""

import stat
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from payonce.examples.transfers.resources import simulated_bank
from payonce.vendors.changenow.simulator import ChangeNowSimulator
from payonce.vendors.gateway.simulator import GatewaySimulator
from payonce.vendors.journal import Journal


@pytest.mark.parametrize(
    "simulator",
    [partial(simulated_bank, "northbank"), partial(simulated_bank, "southbank"), ChangeNowSimulator, GatewaySimulator],
)
def test_only_their_owner_reads_the_books_of_a_simulator(tmp_path: Path, simulator: Callable[[Path], Any]) -> None:
    folder = tmp_path / "simulators"
    with closing(simulator(folder / "vendor.journal")):
        pass
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()] == [0o600]


def test_books_of_an_earlier_version_are_closed_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "bank.journal"
    path.write_bytes(b'{"kind":"opened"}\n{"half')
    path.chmod(0o644)
    journal = Journal(path)
    journal.append({"kind": "more"})
    journal.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_bytes() == b'{"kind":"opened"}\n{"kind":"more"}\n'
