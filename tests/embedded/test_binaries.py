"""Which PostgreSQL is found, preferred and refused."""

from pathlib import Path

import pytest

from payonce.embedded import Installation, binaries, choose_installation, find_installations
from payonce.kit.outcomes import Invalid, Unavailable


def fake_installation(folder: Path, version: str) -> Path:
    folder.mkdir(parents=True)
    for program in ("postgres", "initdb"):
        (folder / program).write_text(f"#!/bin/sh\necho 'postgres (PostgreSQL) {version}'\n")
        (folder / program).chmod(0o755)
    return folder


@pytest.fixture
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without any PostgreSQL; returns where a distribution would put one."""
    monkeypatch.delenv("PAYONCE_PG_BIN", raising=False)
    monkeypatch.setattr(binaries, "WHEEL_PACKAGE", "payonce_no_such_wheel")
    monkeypatch.setattr(binaries, "SYSTEM_ROOT", tmp_path / "system")
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    return tmp_path / "system"


def test_wheel_comes_before_the_system_and_newest_first() -> None:
    found = find_installations()
    assert found[0].source == "wheel"
    wheel_majors = [installation.major for installation in found if installation.source == "wheel"]
    assert wheel_majors == sorted(wheel_majors, reverse=True)
    assert choose_installation() == found[0]


def test_named_folder_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = fake_installation(tmp_path / "bin", "17.5")
    monkeypatch.setenv("PAYONCE_PG_BIN", str(named))
    assert choose_installation() == Installation(bin=named, version=(17, 5), source="PAYONCE_PG_BIN")
    assert len(find_installations()) > 1


def test_named_folder_without_programs_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAYONCE_PG_BIN", str(tmp_path))
    with pytest.raises(Invalid, match=f"PAYONCE_PG_BIN={tmp_path} has no working postgres"):
        choose_installation()


def test_newest_system_version_wins(bare_machine: Path) -> None:
    for version in ("9.6", "15.1", "17.2"):
        fake_installation(bare_machine / version.partition(".")[0] / "bin", version)
    assert [installation.label for installation in find_installations()] == ["17.2", "15.1"]
    assert choose_installation(15).label == "15.1"
    with pytest.raises(Unavailable, match=r"PostgreSQL 16 is needed, but only 17.2, 15.1 is here"):
        choose_installation(16)


def test_only_initdb_on_the_path(bare_machine: Path) -> None:
    folder = fake_installation(bare_machine.parent / "path", "16.1")
    assert choose_installation() == Installation(bin=folder.resolve(), version=(16, 1), source="PATH")


def test_old_version_is_refused(bare_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = fake_installation(bare_machine / "14" / "bin", "14.9")
    assert find_installations() == []
    with pytest.raises(Unavailable, match=r"PostgreSQL 14.9 in .* is older than 15: pip install 'payonce\[embedded\]'"):
        choose_installation()
    monkeypatch.setenv("PAYONCE_PG_BIN", str(old))
    with pytest.raises(Unavailable, match="is older than 15"):
        choose_installation()


@pytest.mark.usefixtures("bare_machine")
def test_missing_programs_give_one_sentence() -> None:
    with pytest.raises(Unavailable) as refused:
        choose_installation()
    assert str(refused.value) == (
        "no PostgreSQL programs were found: pip install 'payonce[embedded]' or set DATABASE_URL"
    )


def test_client_programs_are_the_servers_own_or_the_nearest_newer(bare_machine: Path) -> None:
    for major in (15, 17, 18):
        fake_installation(bare_machine / str(major) / "bin", f"{major}.1")
    assert binaries.choose_for_server(15).major == 15
    assert binaries.choose_for_server(16).major == 17
    with pytest.raises(Unavailable, match="the server runs PostgreSQL 19"):
        binaries.choose_for_server(19)
