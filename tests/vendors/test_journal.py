"""The files of simulators are their owner's alone."""

import stat
from pathlib import Path

import pytest

from payonce.vendors.journal import Journal
from payonce.vendors.simulated import open_simulator


@pytest.mark.parametrize("name", ["northbank", "southbank", "changenow", "gateway"])
def test_only_their_owner_reads_the_books_of_a_simulator(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "simulators"
    with open_simulator(name, folder / f"{name}.journal"):
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
