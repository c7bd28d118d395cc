"""The names of locations, queues, tasks and operations, checked by Google's patterns."""

import re
from typing import Final, NamedTuple

from payonce.taskserver.refusals import invalid

QUEUE_ID_MAX: Final = 100
TASK_ID_MAX: Final = 500
REQUEST_ID_MAX: Final = 100

_LOCATION: Final = r"projects/[A-Za-z0-9:.-]{1,100}/locations/[A-Za-z0-9-]{1,100}"
_LOCATION_NAME: Final = re.compile(_LOCATION)
_QUEUE_NAME: Final = re.compile(rf"({_LOCATION})/queues/[A-Za-z0-9-]{{1,{QUEUE_ID_MAX}}}")
_TASK_NAME: Final = re.compile(
    rf"({_LOCATION}/queues/[A-Za-z0-9-]{{1,{QUEUE_ID_MAX}}})/tasks/([A-Za-z0-9_-]{{1,{TASK_ID_MAX}}})"
)
_REQUEST_ID: Final = re.compile(rf"[A-Za-z0-9_-]{{1,{REQUEST_ID_MAX}}}")
_SHOWN_MAX: Final = 200


class TaskName(NamedTuple):
    queue: str
    id: str


def check_location(name: str) -> str:
    if _LOCATION_NAME.fullmatch(name):
        return name
    raise invalid(
        f'Location name must be formatted: "projects/<PROJECT_ID>/locations/<LOCATION_ID>", not {shown(name)}.'
    )


def check_queue(name: str) -> str:
    if _QUEUE_NAME.fullmatch(name):
        return name
    raise invalid(
        'Queue name must be formatted: "projects/<PROJECT_ID>/locations/<LOCATION_ID>/queues/<QUEUE_ID>", where '
        f"QUEUE_ID has 1 to {QUEUE_ID_MAX} letters, digits or hyphens, not {shown(name)}."
    )


def location_of(queue: str) -> str:
    return queue.partition("/queues/")[0]


def split_task(name: str) -> TaskName:
    if match := _TASK_NAME.fullmatch(name):
        return TaskName(match[1], match[2])
    raise invalid(
        'Task name must be formatted: "projects/<PROJECT_ID>/locations/<LOCATION_ID>/queues/<QUEUE_ID>/tasks/<TASK_ID>"'
        f", where TASK_ID has 1 to {TASK_ID_MAX} letters, digits, hyphens or underscores, not {shown(name)}."
    )


def task_name(queue: str, task_id: str) -> str:
    return f"{queue}/tasks/{task_id}"


def operation_name(queue: str, request_id: str) -> str:
    if not _REQUEST_ID.fullmatch(request_id):
        raise invalid(
            f"request_id must have 1 to {REQUEST_ID_MAX} letters, digits, hyphens or underscores, "
            f"not {shown(request_id)}."
        )
    return f"{location_of(queue)}/operations/{request_id}"


def shown(value: str) -> str:
    return repr(value if len(value) <= _SHOWN_MAX else f"{value[:_SHOWN_MAX]}…")
