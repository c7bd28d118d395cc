"""Refusals of calls: a gRPC status and one sentence."""

from typing import NoReturn

import grpc

from payonce.kit.outcomes import PayonceError

QUEUE_NOT_FOUND = (
    "Queue does not exist. If you just created the queue, wait at least a minute for the queue to initialize."
)
NOT_FOUND = "Requested entity was not found."
TASK_GONE = (
    "The task no longer exists, though a task with this name existed recently. "
    "The task either successfully completed or was deleted."
)
TASK_EXISTS = "Requested entity already exists"
TASK_EXISTED = (
    "The task cannot be created because a task with this name existed too recently. "
    "For more information about task de-duplication see "
    "https://cloud.google.com/tasks/docs/reference/rest/v2/projects.locations.queues.tasks/create#body.request_body.FIELDS.task."
)
QUEUE_EXISTS = "Queue already exists"
QUEUE_EXISTED = "The queue cannot be created because a queue with this name existed too recently."


class Refusal(PayonceError):
    """Ends a call with this status."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


def invalid(text: str) -> Refusal:
    return Refusal(grpc.StatusCode.INVALID_ARGUMENT, text)


def not_found(text: str = NOT_FOUND) -> Refusal:
    return Refusal(grpc.StatusCode.NOT_FOUND, text)


def exists(text: str) -> Refusal:
    return Refusal(grpc.StatusCode.ALREADY_EXISTS, text)


def unimplemented(what: str) -> NoReturn:
    raise Refusal(
        grpc.StatusCode.UNIMPLEMENTED, f"{what} is not served by this Cloud Tasks server; use Google's for it."
    )
