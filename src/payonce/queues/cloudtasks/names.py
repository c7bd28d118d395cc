"""What tasks and queues are called at the task service."""

import hashlib
import re
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from payonce.kit.outcomes import Invalid

RELAY: Final = "cloudtasks"
"""Also the name of the backend in payonce.queues."""
LOCAL_PROJECT: Final = "payonce"
INSTALLATION: Final = "payonce-installation"
"""What comes along with the queues of a server of ours: payonce.installation.id of its database."""
LOCAL_ACCOUNT: Final = "tasks@payonce.invalid"
"""For whom our own server signs when no account is named."""
QUEUE_PATTERN: Final = re.compile(r"[A-Za-z0-9-]{1,100}")
_TASK: Final = re.compile(r"[0-9a-f]{8}-([0-9a-f]{32})-(\d{1,9})")


@dataclass(frozen=True)
class Place:
    """A project's queues in one location."""

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
    """The same for every try of one delivery, so that a repeated one is known there. It begins with a hash: ids that
    begin alike, as those by time do, make Google's store slow."""
    rest = f"{message_id.hex}-{delivery}"
    return f"{hashlib.blake2b(rest.encode(), digest_size=4).hexdigest()}-{rest}"


def delivery_of(message_id: UUID, name: str | None) -> int:
    """Which delivery of the message a task is. One that we did not name is its sender's only one."""
    told = _TASK.fullmatch(name or "")
    return int(told[2]) if told is not None and told[1] == message_id.hex else 0


def is_named_here(message_id: UUID, task: str) -> bool:
    """Whether a task, by its full name, is one that `task_id` named for this message."""
    told = _TASK.fullmatch(task.rpartition("/")[2])
    return told is not None and told[1] == message_id.hex


def check_queue_name(queue: str) -> None:
    if not QUEUE_PATTERN.fullmatch(queue):
        raise Invalid(f"queue {queue[:40]!r} cannot be pushed: Cloud Tasks takes 1 to 100 letters, digits and '-'")
