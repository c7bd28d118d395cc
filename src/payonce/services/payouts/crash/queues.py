"""The backend of the scenarios: the pushed queues at our own task server, the others in PostgreSQL."""

from payonce.engine.messages.push import Target
from payonce.kit.webhooks.secrets import Secret
from payonce.queues.cloudtasks.pushed import PushedQueue
from payonce.services.payouts.crash.scenarios import HANDLERS
from payonce.services.payouts.messages.tokens import HOPS, Hop
from payonce.services.payouts.messages.tokens.codec import TokenCodec
from payonce.testing.crash.on_cloudtasks import OnCloudTasks

KEYS = (Secret("the-key-of-explored-tokens"),)


def open_backend() -> OnCloudTasks:
    return OnCloudTasks([_pushed(hop) for hop in HOPS])


def _pushed(hop: Hop) -> PushedQueue:
    """A pushed queue with the address of its role, as in production; here all roles are in one process."""
    [policy] = [each.policy for each in HANDLERS if each.policy.queue == hop.queue]
    target = Target(hop.queue, hop.path, f"http://{hop.role}.test", TokenCodec(hop, KEYS))
    return PushedQueue(target, policy, "payouts", hop.role, here=True)
