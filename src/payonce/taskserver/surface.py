"""The gRPC surface: maps methods to the service's, and refusals to statuses."""

import hmac
from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc
from google.cloud import tasks_v2
from google.longrunning import operations_pb2

from payonce.engine.database.connections import is_transient
from payonce.kit.log import get_logger
from payonce.queues.cloudtasks.names import INSTALLATION
from payonce.taskserver.refusals import Refusal
from payonce.taskserver.service import Service

TASKS_SERVICE: Final = "google.cloud.tasks.v2.CloudTasks"
OPERATIONS_SERVICE: Final = "google.longrunning.Operations"
NOT_SERVED: Final = ("GetIamPolicy", "SetIamPolicy", "TestIamPermissions", "UpdateCmekConfig", "GetCmekConfig")

Method = Callable[[Any], Awaitable[Any]]
Mark = tuple[tuple[str, str], ...]

log = get_logger(__name__)


def handlers_of(service: Service, installation: str, token: str | None = None) -> list[Any]:
    """Handlers for grpc.aio, for callers with the token if there is one. Lists of queues carry the installation's id as
    metadata, since servers look alike."""
    mark = ((INSTALLATION, installation),)
    methods: dict[str, Method] = {
        "CreateQueue": service.create_queue,
        "UpdateQueue": service.update_queue,
        "GetQueue": service.get_queue,
        "ListQueues": service.list_queues,
        "DeleteQueue": service.delete_queue,
        "PurgeQueue": service.purge_queue,
        "PauseQueue": service.pause_queue,
        "ResumeQueue": service.resume_queue,
        "CreateTask": service.create_task,
        "BatchCreateTasks": service.batch_create_tasks,
        "BatchDeleteTasks": service.batch_delete_tasks,
        "GetTask": service.get_task,
        "ListTasks": service.list_tasks,
        "DeleteTask": service.delete_task,
        "RunTask": service.run_task,
    }
    served = {
        name: _handler(method, _request_of(name), mark if name == "ListQueues" else ())
        for name, method in methods.items()
    }
    refused = {name: _refusing(name) for name in NOT_SERVED}
    operations = {"GetOperation": _handler(service.get_operation, operations_pb2.GetOperationRequest)}
    handlers = [
        grpc.method_handlers_generic_handler(TASKS_SERVICE, {**served, **refused}),
        grpc.method_handlers_generic_handler(OPERATIONS_SERVICE, operations),
    ]
    return handlers if token is None else [_Guarded(handler, token) for handler in handlers]


class _Guarded(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Refuses calls without the token before their request is read."""

    def __init__(self, handler: Any, token: str) -> None:
        self._handler = handler
        self._wanted = f"Bearer {token}".encode()

    def service(self, handler_call_details: Any) -> Any:
        handler = self._handler.service(handler_call_details)
        if handler is None:
            return None
        given = [value for key, value in handler_call_details.invocation_metadata or () if key == "authorization"]
        if len(given) == 1 and hmac.compare_digest(_raw(given[0]), self._wanted):
            return handler
        return _UNAUTHENTICATED


def _raw(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode("utf-8", "replace")


def _request_of(name: str) -> Any:
    return getattr(tasks_v2, f"{name}Request").pb()


def _handler(method: Method, request_type: Any, mark: Mark = ()) -> Any:
    async def answer(request: Any, context: Any) -> Any:
        if mark:
            context.set_trailing_metadata(mark)
        try:
            return await method(request)
        except Refusal as refusal:
            await context.abort(refusal.code, refusal.text)
        except Exception as error:
            if is_transient(error):
                await context.abort(grpc.StatusCode.UNAVAILABLE, "The database is temporarily unavailable; try again.")
            log.exception("cloudtasks_call_failed", call=getattr(method, "__name__", ""))
            await context.abort(grpc.StatusCode.INTERNAL, "Internal error; see the server's log.")

    return grpc.unary_unary_rpc_method_handler(
        answer,
        request_deserializer=request_type.FromString,
        response_serializer=lambda message: message.SerializeToString(),
    )


def _refusing(name: str) -> Any:
    async def answer(request: bytes, context: Any) -> None:
        text = f"{name} is not served by this Cloud Tasks server; use Google's for it."
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, text)

    return grpc.unary_unary_rpc_method_handler(answer)


async def _unauthenticated(request: bytes, context: Any) -> None:
    await context.abort(
        grpc.StatusCode.UNAUTHENTICATED,
        "This Cloud Tasks server needs a token: send the metadata authorization with the value Bearer and the token, "
        "which is in the file cloudtasks-token of the server's data folder, or in its CLOUD_TASKS_TOKEN.",
    )


_UNAUTHENTICATED: Final = grpc.unary_unary_rpc_method_handler(_unauthenticated)
