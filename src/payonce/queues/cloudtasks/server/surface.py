"""The gRPC surface: which method of the wire is which of the service's, and how refusals travel."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc
from google.cloud import tasks_v2
from google.longrunning import operations_pb2

from payonce.engine.database import is_transient
from payonce.kit.log import get_logger
from payonce.queues.cloudtasks.names import INSTALLATION
from payonce.queues.cloudtasks.server.refusals import Refusal
from payonce.queues.cloudtasks.server.service import Service

TASKS_SERVICE: Final = "google.cloud.tasks.v2.CloudTasks"
OPERATIONS_SERVICE: Final = "google.longrunning.Operations"
NOT_SERVED: Final = ("GetIamPolicy", "SetIamPolicy", "TestIamPermissions", "UpdateCmekConfig", "GetCmekConfig")

Method = Callable[[Any], Awaitable[Any]]
Mark = tuple[tuple[str, str], ...]

log = get_logger(__name__)


def handlers_of(service: Service, installation: str) -> list[Any]:
    """What grpc.aio serves. With queues goes along whose they are: one server may look like another's."""
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
    return [
        grpc.method_handlers_generic_handler(TASKS_SERVICE, {**served, **refused}),
        grpc.method_handlers_generic_handler(OPERATIONS_SERVICE, operations),
    ]


def _request_of(name: str) -> Any:
    return getattr(tasks_v2, f"{name}Request").pb()


def _handler(method: Method, request_type: Any, mark: Mark = ()) -> Any:
    async def answer(request: Any, context: Any) -> Any:
        if mark:
            context.set_trailing_metadata(mark)
        try:
            return await method(request)
        except Refusal as no:
            await context.abort(no.code, no.text)
        except Exception as error:
            if is_transient(error):
                await context.abort(grpc.StatusCode.UNAVAILABLE, "The store is away for the moment; try again.")
            log.exception("cloudtasks_call_failed", call=getattr(method, "__name__", ""))
            await context.abort(grpc.StatusCode.INTERNAL, "This server has failed; its log says how.")

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
