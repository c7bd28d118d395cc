"""A Secret Manager on this machine: the wire format of Google's, for the one method that settings need."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from google.cloud.secretmanager_v1.types import AccessSecretVersionRequest, AccessSecretVersionResponse

METHOD = "AccessSecretVersion"
SERVICE = "google.cloud.secretmanager.v1.SecretManagerService"


class SecretManager:
    """Secrets by their full names; a status instead of bytes is what asking for that one comes to."""

    def __init__(self) -> None:
        self.secrets: dict[str, bytes | grpc.StatusCode] = {}
        self.asked: list[str] = []
        self.port = 0

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    def access(self, request: Any, context: Any) -> Any:
        self.asked.append(request.name)
        found = self.secrets.get(request.name, grpc.StatusCode.NOT_FOUND)
        if isinstance(found, grpc.StatusCode):
            context.abort(found, f"planted: {found.name}")
        return AccessSecretVersionResponse(name=request.name, payload={"data": found})


@contextmanager
def serving() -> Iterator[SecretManager]:
    manager = SecretManager()
    handler = grpc.unary_unary_rpc_method_handler(
        manager.access,
        request_deserializer=AccessSecretVersionRequest.deserialize,
        response_serializer=AccessSecretVersionResponse.serialize,
    )
    server = grpc.server(ThreadPoolExecutor(max_workers=2))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),))
    manager.port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield manager
    finally:
        server.stop(grace=None).wait()
