"""Every test gets a database of its own, with the tables of the service."""

from collections.abc import Sequence

import pytest

pytest_plugins = ["payonce.testing.plugin"]


@pytest.fixture(scope="session")
def payonce_components() -> Sequence[tuple[str, str]]:
    return [("giftcards", "giftcards")]
