"""The measurement of usage events works, and counts what it sent."""

import pytest

from bench.billing_usage import ROLE, UsageSizes, measure_usage
from payonce.app.registry import all_migrations
from payonce.testing import Servers

SIZES = UsageSizes(events=40, accounts=3, rounds=1)


@pytest.mark.full
async def test_events_are_sent_to_a_real_server_and_all_counted() -> None:
    servers = Servers(all_migrations())
    try:
        with servers.of().lent() as database:
            found = await measure_usage(database.service_url, database.superuser_url, SIZES, lambda _: None)
    finally:
        servers.close()
    assert [each.layout for each in found] == ["spread", "shared"]
    for each in found:
        assert each.per_s > 0
        assert set(each.cpu_ms) == {ROLE, "postgresql", "caller"}
