"""The connection between a process and a task service, without sockets: each call and each dispatch is one crossing.

Google's client, the server's surface, its sender and the endpoints are the production ones. HTTP/2 and TCP are left
out: a gRPC channel starts threads, and a process with threads cannot be forked for every point.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NoReturn

import grpc
from google.auth.credentials import AnonymousCredentials
from google.cloud.tasks_v2 import CloudTasksAsyncClient
from google.cloud.tasks_v2.services.cloud_tasks.transports import CloudTasksGrpcAsyncIOTransport
from grpc.aio import AioRpcError, Channel, Metadata, UnaryUnaryMultiCallable

from payonce.kit.http.failures import Broken
from payonce.kit.http.inprocess import Application, InProcessTransport
from payonce.kit.http.response import Attempt
from payonce.kit.http.target import parse_url
from payonce.kit.http.transport import Outgoing
from payonce.taskserver.service import Service
from payonce.taskserver.surface import handlers_of
from payonce.taskserver.wire import ResponseHead

ANSWER_MAX_BYTES: Final = 64 * 1024
INSTALLATION: Final = "explored"
READING: Final = ("Get", "List")
"""Prefixes of read-only calls."""

Interceptor = Callable[[bool, Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""Runs a call unless the process crashes there; its first argument says whether the call only reads."""


def client_of(service: Service, intercept: Interceptor) -> CloudTasksAsyncClient:
    """Google's own client, connected to a server in this process."""
    channel = InProcessChannel(handlers_of(service, INSTALLATION), intercept)
    transport = CloudTasksGrpcAsyncIOTransport(channel=channel, credentials=AnonymousCredentials())
    return CloudTasksAsyncClient(transport=transport)


class InProcessChannel(Channel):  # type: ignore[misc]
    """A gRPC channel that ends in this process."""

    def __init__(self, handlers: Sequence[Any], intercept: Interceptor) -> None:
        self._handlers = handlers
        self._intercept = intercept
        self._unary_unary_interceptors: list[object] = []
        """Google's transport adds one for its log."""

    def unary_unary(
        self, method: str, request_serializer: Any = None, response_deserializer: Any = None, *rest: Any, **more: Any
    ) -> UnaryUnaryMultiCallable:
        return UnaryCall(self._handlers, self._intercept, method, request_serializer, response_deserializer)

    async def __aenter__(self) -> "InProcessChannel":
        return self

    async def __aexit__(self, *raised: object) -> None:
        return None

    async def close(self, grace: float | None = None) -> None:
        return None

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return grpc.ChannelConnectivity.READY

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        return None

    async def channel_ready(self) -> None:
        return None

    def unary_stream(self, *arguments: Any, **options: Any) -> NoReturn:
        raise NotImplementedError("Cloud Tasks has no streams")

    stream_unary = stream_stream = unary_stream


class UnaryCall(UnaryUnaryMultiCallable):  # type: ignore[misc]
    """One method of the service, with requests and responses in wire format."""

    def __init__(
        self, handlers: Sequence[Any], intercept: Interceptor, method: str, packed: Any, unpacked: Any
    ) -> None:
        self._handlers = handlers
        self._intercept = intercept
        self._method = method
        self._packed = packed
        self._unpacked = unpacked

    def __call__(self, request: Any, **options: Any) -> Any:
        reads = self._method.rpartition("/")[2].startswith(READING)
        body = self._packed(request)
        return PendingCall(lambda: self._intercept(reads, lambda: self._answered(body)))

    async def _answered(self, body: bytes) -> Any:
        found = (handler.service(CallDetails(self._method)) for handler in self._handlers)
        method = next(each for each in found if each is not None)
        answer = await method.unary_unary(method.request_deserializer(body), CallContext())
        return self._unpacked(method.response_serializer(answer))


class PendingCall:
    """A call in progress, which Google's client awaits."""

    def __init__(self, act: Callable[[], Awaitable[Any]]) -> None:
        self._act = act

    def __await__(self) -> Any:
        return self._act().__await__()


class CallDetails(grpc.HandlerCallDetails):  # type: ignore[misc]
    def __init__(self, method: str) -> None:
        self.method = method
        self.invocation_metadata = ()


class CallContext:
    """The context of a server method: it may abort; the trailing metadata is not used."""

    def set_trailing_metadata(self, metadata: Any) -> None: ...

    async def abort(self, code: grpc.StatusCode, text: str) -> NoReturn:
        raise AioRpcError(code, Metadata(), Metadata(), details=text)


class InProcessWire:
    """The sender's wire, which passes requests to applications by their full URL."""

    def __init__(self, endpoints: Mapping[str, Application], intercept: Interceptor) -> None:
        self._endpoints = endpoints
        self._intercept = intercept

    async def exchange(self, method: str, url: str, headers: Sequence[tuple[str, str]], body: bytes) -> ResponseHead:
        reply: ResponseHead = await self._intercept(False, lambda: self._answered(method, url, headers, body))
        return reply

    async def _answered(self, method: str, url: str, headers: Sequence[tuple[str, str]], body: bytes) -> ResponseHead:
        if url not in self._endpoints:
            raise OSError(f"no endpoint listens at {url}")
        transport = InProcessTransport(self._endpoints[url], allow_private=True, resolve=None)
        attempt = Attempt(ANSWER_MAX_BYTES)
        try:
            await transport.exchange(Outgoing(method, parse_url(url), list(headers), body or None), attempt)
            received, _ = attempt.finish()
        except Broken as error:
            raise OSError(error.reason) from error
        finally:
            await transport.close()
        return ResponseHead(attempt.status, received.get("Retry-After"))
