"""HTTPS_PROXY and NO_PROXY, against a CONNECT proxy on the loopback."""

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from payonce.kit.http import HttpClient, NotPublic
from payonce.kit.outcomes import Invalid, NotSent, Unknown
from payonce.testing.eventually import eventually
from tests.kit.test_http_sockets import Dropper, Names, listening, self_signed

SECRET = "hunter2hunter2"


class Proxy:
    """Opens a tunnel to one port of this machine, whatever host it is asked for."""

    def __init__(self, answer: bytes = b"HTTP/1.1 200 Connection established\r\n\r\n") -> None:
        self.answer = answer
        self.target_port = 0
        self.heads: list[str] = []
        self.open = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            self.heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
            writer.write(self.answer)
            if not self.answer:
                await reader.read()
            elif self.target_port:
                beyond = await asyncio.open_connection("127.0.0.1", self.target_port)
                await asyncio.gather(_pump(reader, beyond[1]), _pump(beyond[0], writer))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open -= 1
            writer.close()

    @property
    def places(self) -> list[str]:
        return [head.split()[1] for head in self.heads]


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        while part := await source.read(65_536):
            sink.write(part)
            await sink.drain()
    except ConnectionError:
        pass
    finally:
        sink.close()


async def nobody_is_asked(host: str, port: int) -> Sequence[str]:
    raise AssertionError(f"{host} was looked up here")


@asynccontextmanager
async def proxied(
    monkeypatch: pytest.MonkeyPatch,
    proxy: Proxy,
    *,
    login: str = "",
    url: str = "https://vendor.example",
    **options: Any,
) -> AsyncIterator[HttpClient]:
    async with listening(proxy) as port:
        monkeypatch.setenv("HTTPS_PROXY", f"http://{login}127.0.0.1:{port}")
        async with HttpClient("vendor", url, **{"resolve": nobody_is_asked, **options}) as client:
            yield client
        await eventually(lambda: proxy.open == 0)


@asynccontextmanager
async def reached(
    monkeypatch: pytest.MonkeyPatch, folder: Path, vendor: Dropper, **options: Any
) -> AsyncIterator[tuple[HttpClient, Proxy]]:
    """A vendor with TLS behind the proxy."""
    proxy, made = Proxy(), self_signed(folder)
    trusting = ssl.create_default_context(cafile=str(folder / "certificate.pem"))
    async with (
        listening(vendor, made) as proxy.target_port,
        proxied(monkeypatch, proxy, **{"tls": trusting, **options}) as client,
    ):
        yield client, proxy


async def test_requests_share_a_tunnel_and_are_not_seen_by_the_proxy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendor = Dropper(answered=2)
    async with reached(monkeypatch, tmp_path, vendor, login=f"ann:{SECRET}@") as (client, proxy):
        for _ in range(2):
            assert (await client.request("POST", "/x", headers={"x-api-key": SECRET})).status == 200
    (head,) = proxy.heads
    assert head.startswith("CONNECT vendor.example:443 HTTP/1.1\r\n")
    login = base64.b64encode(f"ann:{SECRET}".encode()).decode()
    assert f"Proxy-Authorization: Basic {login}\r\n" in head
    assert "x-api-key" not in head.lower()
    assert vendor.requests == ["POST", "POST"]


async def test_the_vendors_certificate_is_checked_through_the_tunnel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendor = Dropper(answered=1)
    async with reached(monkeypatch, tmp_path, vendor, url="https://other.example") as (client, _):
        with pytest.raises(NotSent, match="certificate was not accepted: Hostname mismatch"):
            await client.request("POST", "/x")
    assert not vendor.requests


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_tunnel_that_drops_after_the_request_is_unknown_and_nothing_is_sent_again(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendor = Dropper(answered=1)
    async with reached(monkeypatch, tmp_path, vendor) as (client, proxy):
        await client.request(method, "/x")
        with pytest.raises(Unknown, match="dropped before an answer"):
            await client.request(method, "/x")
    assert (vendor.requests, len(proxy.heads)) == ([method, method], 1)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (
            b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n",
            "proxy of HTTPS_PROXY answered 407",
        ),
        (b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n", "proxy of HTTPS_PROXY answered 502"),
        (b"HTTP/1.1 200 Connection established\r\n\r\n", "TLS could not be agreed|no connection: |dropped"),
        (b"SSH-2.0-OpenSSH\r\n", "the answer was not HTTP"),
        (b"", "no connection in time"),
    ],
)
async def test_a_tunnel_that_is_not_opened_is_not_sent_through(
    answer: bytes, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = Proxy(answer)
    async with proxied(monkeypatch, proxy, login=f"ann:{SECRET}@", connect_timeout_s=0.5) as client:
        with pytest.raises(NotSent, match=why) as failure:
            await client.request("POST", "/x")
    assert SECRET not in str(failure.value)
    assert proxy.places == ["vendor.example:443"]


async def test_a_proxy_that_is_not_there_is_not_sent_to(monkeypatch: pytest.MonkeyPatch) -> None:
    async with proxied(monkeypatch, Proxy()) as client:
        monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
        async with HttpClient("vendor", "https://vendor.example", resolve=nobody_is_asked) as other:
            with pytest.raises(NotSent, match="no connection to the proxy of HTTPS_PROXY: Connection refused"):
                await other.request("POST", "/x")
        assert repr(client) == "HttpClient('vendor', https://vendor.example)"


async def test_the_name_of_a_proxy_is_looked_up_and_may_be_private(monkeypatch: pytest.MonkeyPatch) -> None:
    names = Names(["127.0.0.1"])
    proxy = Proxy(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
    async with listening(proxy) as port:
        monkeypatch.setenv("HTTPS_PROXY", f"proxy.corp.example:{port}")
        async with HttpClient("webhooks", None, resolve=names) as client:
            with pytest.raises(NotSent, match="answered 403"):
                await client.request("POST", "https://receiver.example/hook")
            # The same name as a target is judged.
            with pytest.raises(NotPublic, match="loopback"):
                await client.request("POST", f"http://proxy.corp.example:{port}/hook")
        assert names.asked == [("proxy.corp.example", port)] * 2
        await eventually(lambda: proxy.open == 0)


@pytest.mark.parametrize(
    "url",
    [
        "https://10.0.0.5/",
        "https://169.254.169.254/latest/",
        "https://[fd00::1]/",
        "https://127.0.0.1/",
        "https://localhost/",
        "https://console.localhost/",
        "https://metadata.google.internal/",
        "https://printer.local/",
        "https://nas.home.arpa/",
        "https://intranet/",
    ],
)
async def test_a_proxy_is_not_asked_for_private_targets(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = Proxy()
    async with (
        proxied(monkeypatch, proxy),
        HttpClient("webhooks", None, resolve=Names(["127.0.0.1"])) as client,
    ):
        with pytest.raises(NotPublic):
            await client.request("POST", url)
    assert proxy.heads == []


@pytest.mark.parametrize(
    ("no_proxy", "url"),
    [
        ("vendor.example", "https://vendor.example"),
        ("other.example, .example", "https://vendor.example"),
        ("*", "https://vendor.example"),
        ("", "http://vendor.example"),
    ],
)
async def test_targets_that_no_proxy_is_for_are_judged_and_reached_directly(
    no_proxy: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", no_proxy)
    proxy, names = Proxy(), Names(["10.0.0.5"])
    async with proxied(monkeypatch, proxy, url=url, resolve=names) as client:
        with pytest.raises(NotPublic, match=r"vendor\.example is at 10\.0\.0\.5"):
            await client.request("POST", "/x")
    assert proxy.heads == []


async def test_this_machine_is_reached_without_the_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vendor, proxy, made = Dropper(answered=1), Proxy(), self_signed(tmp_path)
    trusting = ssl.create_default_context(cafile=str(tmp_path / "certificate.pem"))
    async with listening(vendor, made) as port:
        url = f"https://127.0.0.1:{port}"
        async with proxied(monkeypatch, proxy, url=url, allow_private=True, tls=trusting) as client:
            assert (await client.request("POST", "/x")).status == 200
    assert proxy.heads == []


@pytest.mark.parametrize("text", [f"socks5://ann:{SECRET}@proxy:1080", f"http://ann:{SECRET}@", "http://proxy:port"])
def test_a_setting_that_names_no_proxy_is_refused_without_its_login(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", text)
    with pytest.raises(Invalid, match="HTTPS_PROXY is not the address of a proxy") as refusal:
        HttpClient("vendor", "https://vendor.example")
    assert SECRET not in str(refusal.value)
