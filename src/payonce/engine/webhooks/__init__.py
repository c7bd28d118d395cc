"""Webhooks: outgoing events, delivered at least once and recorded; incoming events, accepted once.

registry            endpoints and their secrets
events              publishing an event, in the transaction that it follows from
delivery_attempt    one attempt, its result and the next step
replays             sending an event again
queries             pages for people
receiver            incoming webhooks
retention           deletion of old events
"""

from payonce.engine.webhooks.delivery_attempt import DELIVERIES, Sender, deliver, webhook_client
from payonce.engine.webhooks.events import announce, announce_to
from payonce.engine.webhooks.model import Attempt, Delivery, DeliveryState, Endpoint, EndpointState
from payonce.engine.webhooks.queries import attempts, deliveries, delivery, endpoints, event_body
from payonce.engine.webhooks.receiver import Received, Receiver
from payonce.engine.webhooks.registry import (
    OVERLAP_S,
    add_endpoint,
    disable_endpoint,
    enable_endpoint,
    endpoint,
    remove_endpoint,
    rotate_secret,
    secrets_in_force,
)
from payonce.engine.webhooks.replays import Batch, Range, count_range, replay, replay_range

__all__ = [
    "DELIVERIES",
    "OVERLAP_S",
    "Attempt",
    "Batch",
    "Delivery",
    "DeliveryState",
    "Endpoint",
    "EndpointState",
    "Range",
    "Received",
    "Receiver",
    "Sender",
    "add_endpoint",
    "announce",
    "announce_to",
    "attempts",
    "count_range",
    "deliver",
    "deliveries",
    "delivery",
    "disable_endpoint",
    "enable_endpoint",
    "endpoint",
    "endpoints",
    "event_body",
    "remove_endpoint",
    "replay",
    "replay_range",
    "rotate_secret",
    "secrets_in_force",
    "webhook_client",
]
