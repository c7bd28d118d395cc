"""PAYONCE_SERVICES: a deployment has the chosen services and nothing of the others."""

import os
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest

from payonce.app import registry
from payonce.app.registry import load_services
from payonce.kit.outcomes import Invalid
from payonce.testing import ScratchDatabase, ScratchServer

SCHEMAS = """
    select array_agg(nspname::text order by nspname) from pg_namespace where nspname in
        ('tally', 'transfers', 'payouts', 'subscriptions', 'payments', 'cloudtasks')
"""


def names(choice: str | None) -> list[str]:
    loaded = load_services({} if choice is None else {"PAYONCE_SERVICES": choice})
    return list(dict.fromkeys(service.name for service in loaded.services))


def test_without_a_choice_every_installed_service_is_there() -> None:
    assert names(None) == names("") == ["tally", "transfers", "payouts", "billing", "webhooks", "cloudtasks"]


def test_the_chosen_services_come_with_the_platforms_own() -> None:
    assert names(" payouts , tally,") == ["tally", "payouts", "webhooks", "cloudtasks"]


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(Invalid, match="PAYONCE_SERVICES names 'payout'; installed services are: tally, transfers, pay"):
        names("tally,payout")


def test_a_service_without_its_extra_is_absent_unless_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_is_importable", lambda module: module != "jwt")
    assert "billing" not in names(None)
    remedy = "needs the module jwt; run: pip install 'payonce[billing]'"
    assert load_services({}).absent["billing"] == f"it {remedy}"
    with pytest.raises(Invalid, match="PAYONCE_SERVICES names billing, which needs the module jwt; run: pip install"):
        names("billing")


def run(*arguments: str, scratch: ScratchDatabase, folder: Path, services: str) -> "subprocess.CompletedProcess[str]":
    environment = {
        **os.environ,
        "PAYONCE_SERVICES": services,
        "PAYONCE_DATA_DIR": str(folder),
        "DATABASE_URL": scratch.service_url,
        "DATABASE_OWNER_URL": scratch.owner_url,
    }
    return subprocess.run(
        [sys.executable, "-m", "payonce", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


async def test_services_that_are_left_out_have_no_tables_roles_and_commands(
    postgres: ScratchServer, tmp_path: Path
) -> None:
    bare = postgres.empty_database()

    def payonce(*arguments: str, services: str = "tally") -> "subprocess.CompletedProcess[str]":
        return run(*arguments, scratch=bare, folder=tmp_path, services=services)

    assert payonce("db", "migrate").returncode == 0
    connection = await asyncpg.connect(bare.owner_url)
    try:
        assert await connection.fetchval(SCHEMAS) == ["cloudtasks", "tally"]
        queues = payonce("queues", "list")
        assert (queues.returncode, "gcsplit" in queues.stdout) == (0, False), queues.stderr
        refused = payonce("run", "payouts.swapper")
        assert "the service is absent: PAYONCE_SERVICES leaves it out; add it there" in refused.stderr
        assert "billing" not in payonce("--help").stdout
        # Chosen later, it is added to the same database; left out again, its tables stay.
        assert payonce("db", "migrate", services="tally,payouts").returncode == 0
        assert await connection.fetchval(SCHEMAS) == ["cloudtasks", "payouts", "tally"]
        assert payonce("db", "status").returncode == 0
    finally:
        await connection.close()
