"""A pushed queue with all that belongs to it: who serves it, where, and under which policy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from payonce.engine.messages.policy import Policy
from payonce.engine.messages.push import Target
from payonce.kit.outcomes import Invalid
from payonce.queues.cloudtasks.names import check_queue_name

ANSWER_MARGIN_S: Final = 15.0
"""Beyond the run's limit, for its beginning and its settlement. Google's least patience, too."""
ANSWER_MAX_S: Final = 30 * 60.0
"""The task service waits no longer than this."""


@dataclass(frozen=True)
class Pushed:
    target: Target
    policy: Policy
    service: str
    role: str
    here: bool = False
    """Whether this process serves it."""
    alone: bool = False
    """Whether its role is the only one of its service in this process: then its path is the bare one as well."""

    def __post_init__(self) -> None:
        check_queue_name(self.there)
        if not self.target.path.startswith("/"):
            raise Invalid(f"queue {self.target.queue} is pushed to path {self.target.path!r}; a path begins with '/'")

    @property
    def queue(self) -> str:
        return self.target.queue

    @property
    def there(self) -> str:
        """What it is called at the task service."""
        return self.target.called or self.target.queue

    @property
    def long_path(self) -> str:
        return f"/{self.service}/{self.role}{self.target.path}"

    @property
    def paths(self) -> Sequence[str]:
        """Where this process answers."""
        return (self.long_path, self.target.path) if self.alone else (self.long_path,)

    @property
    def answers_within_s(self) -> float:
        """So long may an answer take; the task service is told to wait for it."""
        return min(self.policy.run_limit_s + self.policy.lease_s + ANSWER_MARGIN_S, ANSWER_MAX_S)

    def reached_at(self, own_address: str | None) -> tuple[str, str] | None:
        """The process that serves it, without and with the path; None: nobody who is known here does."""
        if self.target.url is not None:
            root = self.target.url.rstrip("/")
            return root, root + self.target.path
        if self.here and own_address is not None:
            return own_address, own_address + self.long_path
        return None


def by_queue(pushed: Sequence[Pushed]) -> Mapping[str, Pushed]:
    found: dict[str, Pushed] = {}
    for each in pushed:
        if each.queue in found:
            raise Invalid(f"queue {each.queue} is pushed to two places; keep one")
        found[each.queue] = each
    return found
