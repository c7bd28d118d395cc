"""A server whose databases have the tables of payouts."""

from collections.abc import Sequence

import pytest


@pytest.fixture(scope="session")
def payonce_components() -> Sequence[tuple[str, str]]:
    return (("payouts", "payonce.services.payouts"),)
