"""Fixtures of tests that send requests to the application: the shared servers, and settings of a scratch database."""

import base64
from pathlib import Path

import pytest

from payonce.settings import Settings, load_settings
from payonce.testing import ScratchDatabase, Servers

__all__ = ["servers", "settings"]


@pytest.fixture(scope="session")
def servers(shared_servers: Servers) -> Servers:
    return shared_servers


@pytest.fixture
def settings(scratch: ScratchDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("DATABASE_URL", scratch.service_url)
    monkeypatch.setenv("PAYONCE_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("PAYONCE_KEYS", f"k1:{base64.b64encode(bytes(range(32))).decode()}")
    return load_settings()
