"""A private server for the benchmark to run on."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from payonce.embedded import reset, start


@pytest.fixture(scope="session")
def server_url() -> Iterator[str]:
    # pytest's own folders are closed to the account that the server runs as.
    folder = Path(tempfile.mkdtemp(prefix="payonce-test-"))
    folder.chmod(0o755)
    try:
        # Figures do not matter here, only that they come.
        server = start(folder / "pg", settings={"fsync": "off"}, tie_to_parent=True)
        yield server.superuser_url
    finally:
        reset(folder / "pg")
        shutil.rmtree(folder)
