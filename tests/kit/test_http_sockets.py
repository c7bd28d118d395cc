"""Behaviour of real sockets: refused and dropped connections, TLS, names and connection reuse."""

import asyncio
import datetime
import errno
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from payonce.kit.http import HttpClient, Unsendable, sockets
from payonce.kit.outcomes import NotSent, Unknown
from tests.kit.conftest import Vendor, patient, serving

PUBLIC = "93.184.215.14"


class Names:
    """Returns the answers one after the other, and repeats the last."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, int]] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append((host, port))
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


async def nobody_knows(host: str, port: int) -> Sequence[str]:
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


async def nobody_answers(host: str, port: int) -> Sequence[str]:
    return await asyncio.Future[Sequence[str]]()


class Dropper:
    """Answers `answered` requests on each connection, then reads one more and hangs up."""

    def __init__(self, answered: int) -> None:
        self.answered = answered
        self.requests: list[str] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        left = self.answered
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                self.requests.append(head.split()[0].decode())
                if left == 0:
                    return
                left -= 1
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()


@asynccontextmanager
async def listening(handler: Any, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    server = await asyncio.start_server(handler, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()


def client_of(port: int, scheme: str = "http", **options: Any) -> HttpClient:
    return HttpClient("vendor", f"{scheme}://127.0.0.1:{port}", **{"allow_private": True, **options})


async def test_a_refused_connection_is_not_sent() -> None:
    # Bound and not listening: a released port might belong to another process by now.
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        async with client_of(taken.getsockname()[1]) as client:
            with pytest.raises(NotSent, match="POST /x was not sent: no connection: Connection refused"):
                await client.request("POST", "/x")


async def test_an_unknown_name_is_not_sent() -> None:
    async with HttpClient("vendor", "https://vendor.example", resolve=nobody_knows) as client:
        with pytest.raises(NotSent, match="name is not known"):
            await client.request("POST", "/x")


@pytest.mark.parametrize("times", [{"connect_timeout_s": 0.05}, {"timeout_s": 0.05}])
async def test_time_running_out_while_connecting_is_not_sent(times: dict[str, float]) -> None:
    async with HttpClient("vendor", "https://vendor.example", resolve=nobody_answers, **times) as client:  # type: ignore[arg-type]
        with pytest.raises(NotSent, match=r"no connection in time|no answer within 0\.05 s"):
            await client.request("POST", "/x")


async def test_waiting_for_a_free_connection_in_vain_is_not_sent(vendor: Vendor) -> None:
    async def attempt(connect_timeout_s: float) -> None:
        async with client_of(port, connections_max=1, connect_timeout_s=connect_timeout_s) as client:
            first = asyncio.create_task(client.request("POST", "/slow", timeout_s=60))
            asked = asyncio.create_task(vendor.asked.wait())
            try:
                await asyncio.wait({first, asked}, return_when=asyncio.FIRST_COMPLETED)
                if first.done():
                    first.result()
                with pytest.raises(NotSent):
                    await client.request("POST", "/x")
            finally:
                first.cancel()
                asked.cancel()
                await asyncio.wait({first, asked})

    async with serving(vendor) as port:
        await patient(attempt)
    assert [request["path"] for request in vendor.seen] == ["/slow"]


async def test_a_server_without_tls_is_not_sent_to() -> None:
    async def talks_plainly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Closing with unread data resets the connection, and the response may be lost with it.
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with listening(talks_plainly) as port, client_of(port, "https") as client:
        with pytest.raises(NotSent, match="TLS could not be agreed"):
            await client.request("POST", "/x")


async def test_an_untrusted_certificate_is_refused_and_a_trusted_one_accepted(tmp_path: Path) -> None:
    seen = Dropper(answered=1)
    made = self_signed(tmp_path)
    async with listening(seen, made) as port:
        async with client_of(port, "https") as client:
            with pytest.raises(NotSent, match="certificate was not accepted: self-signed certificate"):
                await client.request("POST", "/x")
        assert not seen.requests
        trusting = ssl.create_default_context(cafile=str(tmp_path / "certificate.pem"))
        async with client_of(port, "https", tls=trusting) as client:
            assert (await client.request("POST", "/x")).status == 200
        # The certificate is valid for the address and vendor.example, not for this name.
        url = f"https://other.example:{port}"
        async with HttpClient("vendor", url, allow_private=True, tls=trusting, resolve=Names(["127.0.0.1"])) as client:
            with pytest.raises(NotSent, match="certificate was not accepted: Hostname mismatch"):
                await client.request("POST", "/x")
    assert len(seen.requests) == 1


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "OPTIONS", "POST", "PATCH"])
@pytest.mark.parametrize("answered", [0, 1])
async def test_a_dropped_connection_is_unknown_and_nothing_is_sent_again(method: str, answered: int) -> None:
    """Also on a reused connection, where many clients repeat most methods."""
    dropper = Dropper(answered)
    async with listening(dropper) as port, client_of(port) as client:
        for _ in range(answered):
            await client.request(method, "/x")
        with pytest.raises(Unknown, match="dropped before an answer"):
            await client.request(method, "/x", body=b"")
    assert dropper.requests == [method] * (answered + 1)


async def test_an_answer_that_is_not_http_is_unknown() -> None:
    async def babbles(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"220 smtp.example ESMTP\r\n")
        writer.close()

    async with listening(babbles) as port, client_of(port) as client:
        with pytest.raises(Unknown, match="was not HTTP"):
            await client.request("POST", "/x")


async def test_a_connection_serves_many_requests(vendor: Vendor) -> None:
    async with serving(vendor) as port, client_of(port) as client:
        for _ in range(5):
            await client.request("GET", "/echo")
    assert len(set(vendor.places)) == 1


async def test_a_name_is_resolved_once_per_connection_and_the_answer_is_pinned(vendor: Vendor) -> None:
    names = Names(["127.0.0.1"], ["192.0.2.1"])
    async with (
        serving(vendor) as port,
        HttpClient("vendor", f"http://vendor.example:{port}", allow_private=True, resolve=names) as client,
    ):
        for _ in range(3):
            await client.request("GET", "/echo")
    assert names.asked == [("vendor.example", port)]
    assert dict(vendor.seen[0]["headers"])["host"] == f"vendor.example:{port}"


class Sockets:
    """Records the addresses of connection attempts, and refuses them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.places: list[str] = []
        genuine = sockets._guarded_socket

        def noted(allow_private: bool, info: tuple[Any, ...]) -> socket.socket:
            genuine(allow_private, info).close()
            self.places.append(info[4][0])
            raise OSError(errno.ECONNREFUSED, "Connection refused")

        monkeypatch.setattr(sockets, "_guarded_socket", noted)


async def test_a_name_that_changes_its_answer_does_not_get_through(monkeypatch: pytest.MonkeyPatch) -> None:
    made, names = Sockets(monkeypatch), Names([PUBLIC], ["127.0.0.1"])
    async with HttpClient("webhooks", None, resolve=names) as client:
        with pytest.raises(NotSent, match="Connection refused"):
            await client.request("POST", "https://rebind.example/hook")
        assert (made.places, len(names.asked)) == ([PUBLIC], 1)
        with pytest.raises(Unsendable, match=r"rebind.example is at 127\.0\.0\.1, which is loopback"):
            await client.request("POST", "https://rebind.example/hook")
    assert (made.places, len(names.asked)) == ([PUBLIC], 2)


async def test_one_private_address_among_public_ones_refuses_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Sockets(monkeypatch)
    async with HttpClient("webhooks", None, resolve=Names([PUBLIC, "2606:2800:21f::1", "10.0.0.5"])) as client:
        with pytest.raises(Unsendable, match="private"):
            await client.request("POST", "https://mixed.example/hook")
    assert made.places == []


async def test_the_socket_is_guarded_even_if_the_first_look_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    async def unjudged(resolve: Any, host: str, port: int, *, allow_private: bool) -> list[Any]:
        return [ip_address(text) for text in await resolve(host, port)]

    made = Sockets(monkeypatch)
    monkeypatch.setattr(sockets, "resolve_once", unjudged)
    async with HttpClient("webhooks", None, resolve=Names(["169.254.169.254"])) as client:
        with pytest.raises(Unsendable, match="link-local"):
            await client.request("POST", "http://metadata.example/hook")
    assert made.places == []


async def test_an_address_in_the_url_is_connected_to_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    made, names = Sockets(monkeypatch), Names(["127.0.0.1"])
    async with HttpClient("webhooks", None, resolve=names) as client:
        for url in (f"https://{PUBLIC}/", "https://[2606:2800:21f::1]:8443/"):
            with pytest.raises(NotSent, match="Connection refused"):
                await client.request("POST", url)
    assert made.places == [PUBLIC, "2606:2800:21f::1"]
    assert not names.asked


async def test_proxies_for_plain_http_are_not_used(vendor: Vendor, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with serving(vendor) as port, client_of(port) as client:
        assert (await client.request("GET", "/echo")).status == 200


def self_signed(folder: Path) -> ssl.SSLContext:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "vendor.example")])
    today = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(today - datetime.timedelta(days=1))
        .not_valid_after(today + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1")), x509.DNSName("vendor.example")]),
            critical=False,
        )
        .sign(key, hashes.SHA256())
    )
    (folder / "certificate.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
    return context
