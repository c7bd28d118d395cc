"""Names of tasks and queues at the task service."""

import hashlib
import re
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from payonce.kit.outcomes import Invalid

RELAY: Final = "cloudtasks"
"""Also names the backend in payonce.queues."""
LOCAL_PROJECT: Final = "payonce"
INSTALLATION: Final = "payonce-installation"
"""Metadata key with which our own server identifies itself: payonce.installation.id of its database."""
LOCAL_ACCOUNT: Final = "tasks@payonce.invalid"
"""The account that our own server signs for when none is configured."""
QUEUE_PATTERN: Final = re.compile(r"[A-Za-z0-9-]{1,100}")
_TASK: Final = re.compile(r"[0-9a-f]{8}-([0-9a-f]{32})-(\d{1,9})")


@dataclass(frozen=True)
class ProjectLocation:
    """A project and location at the task service."""

    project: str
    location: str

    @property
    def parent(self) -> str:
        return f"projects/{self.project}/locations/{self.location}"

    def queue(self, queue: str) -> str:
        return f"{self.parent}/queues/{queue}"

    def task(self, queue: str, task_id: str) -> str:
        return f"{self.queue(queue)}/tasks/{task_id}"


def task_id(message_id: UUID, delivery: int) -> str:
    """The same id for every attempt at one delivery, so that the service recognises repetitions. It begins with a hash
    because ids with a common prefix, such as time-ordered ones, slow down Google's store."""
    rest = f"{message_id.hex}-{delivery}"
    return f"{hashlib.blake2b(rest.encode(), digest_size=4).hexdigest()}-{rest}"


def delivery_of(message_id: UUID, name: str | None) -> int:
    """The delivery number in a task's name. A task named by another sender counts as delivery 0."""
    match = _TASK.fullmatch(name or "")
    return int(match[2]) if match is not None and match[1] == message_id.hex else 0


def is_named_here(message_id: UUID, task: str) -> bool:
    """Whether `task_id` made this full task name for the message."""
    match = _TASK.fullmatch(task.rpartition("/")[2])
    return match is not None and match[1] == message_id.hex


def check_queue_name(queue: str) -> None:
    if not QUEUE_PATTERN.fullmatch(queue):
        raise Invalid(f"queue {queue[:40]!r} cannot be pushed: Cloud Tasks takes 1 to 100 letters, digits and '-'")
