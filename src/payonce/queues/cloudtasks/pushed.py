"""A pushed queue: its service, its address and its policy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from payonce.engine.messages.policy import Policy
from payonce.engine.messages.push import Target
from payonce.kit.outcomes import Invalid
from payonce.queues.cloudtasks.names import check_queue_name

ANSWER_MARGIN_S: Final = 15.0
"""Added to the run's time limit, for its beginning and its settlement. Also Google's minimum deadline."""
ANSWER_MAX_S: Final = 30 * 60.0
"""The task service's maximum deadline."""


@dataclass(frozen=True)
class PushedQueue:
    target: Target
    policy: Policy
    service: str
    role: str
    here: bool = False
    """Whether this process serves it."""
    alone: bool = False
    """Whether its role is the only one of its service in this process: then its path works without a prefix, too."""

    def __post_init__(self) -> None:
        check_queue_name(self.remote_name)
        if not self.target.path.startswith("/"):
            raise Invalid(f"queue {self.target.queue} is pushed to path {self.target.path!r}; start the path with '/'")

    @property
    def queue(self) -> str:
        return self.target.queue

    @property
    def remote_name(self) -> str:
        """The queue's name at the task service."""
        return self.target.called or self.target.queue

    @property
    def long_path(self) -> str:
        return f"/{self.service}/{self.role}{self.target.path}"

    @property
    def paths(self) -> Sequence[str]:
        """The paths of its endpoint in this process."""
        return (self.long_path, self.target.path) if self.alone else (self.long_path,)

    @property
    def answers_within_s(self) -> float:
        """Time limit for a response; also the deadline given to the task service."""
        return min(self.policy.run_limit_s + self.policy.lease_s + ANSWER_MARGIN_S, ANSWER_MAX_S)

    def reached_at(self, own_address: str | None) -> tuple[str, str] | None:
        """The serving process's root URL and endpoint URL; None if its address is unknown here."""
        if self.target.url is not None:
            root = self.target.url.rstrip("/")
            return root, root + self.target.path
        if self.here and own_address is not None:
            return own_address, own_address + self.long_path
        return None


def by_queue(pushed: Sequence[PushedQueue]) -> Mapping[str, PushedQueue]:
    found: dict[str, PushedQueue] = {}
    for each in pushed:
        if each.queue in found:
            raise Invalid(f"queue {each.queue} is pushed to two places; keep one")
        found[each.queue] = each
    return found
