"""Which servers a PostgreSQL URL names."""

import pytest

from payonce.kit.postgres_hosts import Host, hosts_of


@pytest.mark.parametrize(
    ("url", "hosts"),
    [
        ("postgresql://u:p@one:6000,two:6001/payonce?sslmode=require", [Host("one", 6000), Host("two", 6001)]),
        ("postgresql://u@one,two/payonce", [Host("one", 5432), Host("two", 5432)]),
        ("postgresql://u@one,two/payonce?port=6000,6001", [Host("one", 6000), Host("two", 6001)]),
        ("postgresql://u@[::1]:6000,two/payonce", [Host("::1", 6000), Host("two", 5432)]),
        ("postgresql://u@/payonce?host=/run/a,/run/b&port=5432,5433", [Host("/run/a", 5432), Host("/run/b", 5433)]),
        ("postgresql://u@/payonce?host=/run/a,/run/b&port=6000", [Host("/run/a", 6000), Host("/run/b", 6000)]),
        ("postgresql://one/payonce", [Host("one", 5432)]),
        ("postgresql:///payonce", []),
    ],
)
def test_hosts_come_in_their_order_with_their_ports(url: str, hosts: list[Host]) -> None:
    assert hosts_of(url) == hosts


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u@one:0,two:5432/payonce",
        "postgresql://u@one:5432,two:99999/payonce",
        "postgresql://u@one:5432,two:x/payonce",
        "postgresql://u@one,,two/payonce",
        "postgresql://u@one,two,three/payonce?port=1,2",
        "postgresql://u@::1,two/payonce",
    ],
)
def test_what_is_no_host_or_port_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"the URL (names|has)"):
        hosts_of(url)


def test_a_host_is_shown_as_it_is_written() -> None:
    hosts = hosts_of("postgresql://u:secret@[::1]:6000,two/payonce")
    assert [str(host) for host in hosts] == ["[::1]:6000", "two:5432"]
