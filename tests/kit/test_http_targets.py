"""Where requests may go: URLs are read in one way, and no spelling of a private address gets through."""

import contextlib
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from multidict import CIMultiDict, CIMultiDictProxy

from payonce.kit.http import HttpClient, Response, Unsendable, parse_url
from payonce.kit.http.addresses import why_not
from payonce.kit.http.response import RETRY_AFTER_MAX_S

PUBLIC = [
    *("1.1.1.1", "8.8.8.8", "93.184.215.14", "100.63.255.255", "100.128.0.0", "172.15.255.255", "172.32.0.0"),
    *("192.167.255.255", "11.0.0.0", "223.255.255.255", "2606:4700::1111", "2a00:1450:4001::1"),
    *("::ffff:8.8.8.8", "64:ff9b::8.8.8.8", "2002:808:808::1"),
]
NOT_PUBLIC = {
    "unspecified": "0.0.0.0 0.1.2.3 :: ::ffff:0.0.0.0",
    "private": "10.0.0.1 172.16.0.1 172.31.255.255 192.168.0.1 fc00::1 fd00:ec2::254 fec0::1 ::ffff:10.0.0.1 "
    "64:ff9b::10.0.0.1 64:ff9b:1::1 2002:a00:1::1 2002:c0a8:101::",
    "shared by carriers": "100.64.0.1 100.100.100.200 100.127.255.255 ::ffff:100.64.0.1",
    "loopback": "127.0.0.1 127.255.255.254 ::1 ::ffff:127.0.0.1 64:ff9b::7f00:1 2002:7f00:1::",
    "link-local": "169.254.169.254 fe80::1 febf::1 ::ffff:169.254.169.254 2002:a9fe:a9fe::",
    "multicast": "224.0.0.1 239.255.255.255 ff02::1 ::ffff:224.0.0.1",
    "reserved": "240.0.0.1 255.255.255.255 192.0.0.192 192.88.99.1 ::7f00:1 ::2 2001::1 100::1 4000::1 5f00::1 "
    "2001:0:4136:e378:8000:63bf:3fff:fdd2 ::ffff:0:127.0.0.1",
    "for documentation": "192.0.2.1 198.51.100.1 203.0.113.1 2001:db8::1 3fff::1",
    "for benchmarks": "198.18.0.1 198.19.255.255",
    "a cloud's own service": "168.63.129.16",
}


@pytest.mark.parametrize("address", PUBLIC)
def test_the_open_internet_is_open(address: str) -> None:
    assert why_not(ip_address(address)) is None


@pytest.mark.parametrize(
    ("kind", "address"), [(kind, each) for kind, many in NOT_PUBLIC.items() for each in many.split()]
)
def test_everything_else_is_not(kind: str, address: str) -> None:
    assert why_not(ip_address(address)) == kind


@given(st.ip_addresses(v=4))
def test_an_address_inside_another_is_judged_as_itself(inner: IPv4Address) -> None:
    mapped, translated, tunnelled = (
        IPv6Address((0xFFFF << 32) + int(inner)),
        IPv6Address((0x64_FF9B << 96) + int(inner)),
        IPv6Address((0x2002 << 112) + (int(inner) << 80) + 1),
    )
    assert why_not(mapped) == why_not(translated) == why_not(tunnelled) == why_not(inner)


@given(st.ip_addresses())
def test_what_python_calls_local_is_never_public(address: IPv4Address | IPv6Address) -> None:
    inside = isinstance(address, IPv6Address) and (address.ipv4_mapped or address.sixtofour)
    local = address.is_private or address.is_loopback or address.is_link_local or address.is_multicast
    if local and not inside:
        assert why_not(address) is not None


PRIVATE_URLS = [
    "http://127.0.0.1/",
    "http://127.0.0.1./",
    "http://127.0.0.1:8080/x",
    "https://10.1.2.3",
    "http://[::1]/",
    "http://[::ffff:127.0.0.1]/",
    "http://[::ffff:7f00:1]:80/",
    "http://[0:0:0:0:0:ffff:a00:1]/",
    "http://[64:ff9b::127.0.0.1]/",
    "http://[fe80::1]/",
    "http://169.254.169.254/latest/meta-data/",
    "http://①②⑦.⓪.⓪.①/",
    "http://127。0。0。1/",
    "http://\N{FULLWIDTH DIGIT ONE}27.0.0.1/",
]
ODD_URLS = [
    "http://2130706433/",
    "http://0x7f.1/",
    "http://0x7f000001/",
    "http://0X7F.0.0.1/",
    "http://0177.0.0.1/",
    "http://127.1/",
    "http://127.0.0.1.1/",
    "http://127.000.000.001/",
    "http://1.1.1.256/",
    "http://evil.0x1/",
    "http://0x/",
    "http://[fe80::1%25eth0]/",
    "http://[::1",
    "http://::1/",
    "http://[127.0.0.1]/",
    "http://user@example.com/",
    "http://user:password@example.com/",
    "http://example.com@127.0.0.1/",
    "http://example.com:80@127.0.0.1/",
    "http://127.0.0.1\\@example.com/",
    "http:\\\\127.0.0.1/",
    "http://example.com\t/",
    "http://exa mple.com/",
    "http://example.com\r\nHost: x/",
    "http://example.com/a b",
    "http://example.com/#x",
    "http://example.com#@127.0.0.1/",
    "http://example..com/",
    "http://example.com../",
    "http://.example.com/",
    "http://-example.com/",
    "http://exam%70le.com/",
    "http://example.com:/",
    "http://example.com:0/",
    "http://example.com:65536/",
    "http://example.com:80:80/",
    "http://example.com:٨٠/",
    "http://" + "a" * 64 + ".com/",
    "http://" + "a." * 130 + "com/",
    "http://example.com/" + "a" * 9000,
    "http://example.com/%zz",
    "http://example.com/?a=%",
    "http://example.com/a/../b",
    "http://xn--\N{LATIN SMALL LETTER SHARP S}-.com/",
    "http:///x",
    "http://",
    "//example.com/",
    "example.com",
    "",
    "ftp://example.com/",
    "file:///etc/passwd",
    "gopher://127.0.0.1:6379/_x",
    "javascript:alert(1)",
    "unix:///var/run/docker.sock",
]


@pytest.mark.parametrize("url", PRIVATE_URLS + ODD_URLS)
async def test_no_spelling_of_a_private_place_gets_through(url: str) -> None:
    reached: list[Any] = []

    async def notes(scope: Any, receive: Any, send: Any) -> None:
        reached.append(scope["server"])

    async with HttpClient("webhooks", None, transport=notes) as client:
        with pytest.raises(Unsendable) as refusal:
            await client.request("POST", url)
    assert "password" not in str(refusal.value)
    assert not reached
    with pytest.raises(Unsendable):
        HttpClient("vendor", url)


@pytest.mark.parametrize("url", PRIVATE_URLS)
def test_a_private_address_is_readable_where_it_is_allowed(url: str) -> None:
    assert parse_url(url).address is not None
    HttpClient("vendor", url, allow_private=True)


@pytest.mark.parametrize(
    ("url", "origin", "path", "query"),
    [
        ("https://Example.COM", "https://example.com", "/", ""),
        ("HTTPS://example.com:443/a/b?x=1&y=%20", "https://example.com", "/a/b", "x=1&y=%20"),
        ("http://example.com.:8080/", "http://example.com:8080", "/", ""),
        ("https://bücher.example/ü?ü", "https://xn--bcher-kva.example", "/%C3%BC", "%C3%BC"),
        ("https://faß.example/", "https://xn--fa-hia.example", "/", ""),
        ("https://_dmarc.example.com/", "https://_dmarc.example.com", "/", ""),
        ("https://[2606:4700:0::1111]:8443/", "https://[2606:4700::1111]:8443", "/", ""),
        ("https://1.1.1.1/dns-query", "https://1.1.1.1", "/dns-query", ""),
        ("https://example.com//a//b", "https://example.com", "//a//b", ""),
        ("https://1password.example/", "https://1password.example", "/", ""),
    ],
)
def test_ordinary_urls_are_read(url: str, origin: str, path: str, query: str) -> None:
    target = parse_url(url)
    assert (target.origin, target.path, target.query) == (origin, path, query)
    target.must_be_public()


@given(st.one_of(st.text(), st.text().map(lambda tail: f"http://{tail}"), st.from_regex(r"https?://[^/]+/.*")))
@example("http://[")
@example("http://\N{LATIN SMALL LETTER SHARP S}.")
def test_any_text_is_a_target_or_unsendable(url: str) -> None:
    with contextlib.suppress(Unsendable):
        target = parse_url(url)
        assert target.host.isascii()
        assert parse_url(f"{target.origin}{target.path}").origin == target.origin


def test_a_path_stays_below_its_base() -> None:
    root = parse_url("https://api.example/v2/")
    assert root.at("/exchange", {"id": "a/b"}).path == "/v2/exchange"
    assert root.at("/exchange", {"id": "a/b"}).query == "id=a%2Fb"
    assert root.at("", None).path == "/v2"
    assert root.at("//other.example/x", None).origin == "https://api.example"
    assert parse_url("https://api.example/?a=1").asking({"b": 2}).query == "a=1&b=2"


def test_neither_path_nor_query_is_in_the_repr() -> None:
    assert repr(parse_url("https://hooks.example/T0/secret?key=secret")) == "Target(https://hooks.example)"


def test_a_base_url_has_no_query() -> None:
    with pytest.raises(Unsendable, match="query"):
        HttpClient("vendor", "https://api.example/?key=1")


@pytest.mark.parametrize(
    ("retry_after", "date", "seconds"),
    [
        ("0", "", 0),
        ("120", "", 120),
        ("9" * 5000, "", RETRY_AFTER_MAX_S),
        ("Wed, 21 Oct 2026 07:28:30 GMT", "Wed, 21 Oct 2026 07:28:00 GMT", 30),
        ("Wed, 21 Oct 2026 07:27:00 GMT", "Wed, 21 Oct 2026 07:28:00 GMT", 0),
        ("Wed, 21 Oct 2036 07:28:00 GMT", "Wed, 21 Oct 2026 07:28:00 GMT", RETRY_AFTER_MAX_S),
        ("Wed, 21 Oct 2026 07:28:30 GMT", "", None),
        ("Wed, 21 Oct 2026 07:28:30", "Wed, 21 Oct 2026 07:28:00 GMT", None),
        ("soon", "", None),
        ("-1", "", None),
        ("", "", None),
    ],
)
def test_retry_after_is_seconds_by_the_vendors_clock(retry_after: str, date: str, seconds: int | None) -> None:
    headers = CIMultiDictProxy(CIMultiDict({"retry-after": retry_after, "date": date}))
    assert Response(429, headers, b"", 0.1).retry_after_s == seconds
