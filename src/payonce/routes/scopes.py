"""What keys of the house may do. Services declare scopes of their own, which keys of tenants may have."""

from typing import Final

QUEUES_READ: Final = "queues:read"
QUEUES_STEER: Final = "queues:steer"
JOBS_READ: Final = "jobs:read"
EFFECTS_READ: Final = "effects:read"
EFFECTS_ANSWER: Final = "effects:answer"
APPROVALS_READ: Final = "approvals:read"
APPROVALS_DECIDE: Final = "approvals:decide"
AUDIT_READ: Final = "audit:read"
METRICS_READ: Final = "metrics:read"

WEBHOOKS_READ: Final = "webhooks:read"
WEBHOOKS_WRITE: Final = "webhooks:write"

HOUSE_SCOPES: Final = {
    QUEUES_READ: "see queues and their messages",
    QUEUES_STEER: "pause, resume and redrive",
    JOBS_READ: "read the job log and follow traces",
    EFFECTS_READ: "see what was sent to vendors",
    EFFECTS_ANSWER: "answer effects in review",
    APPROVALS_READ: "see what waits for a second person",
    APPROVALS_DECIDE: "be the second person",
    AUDIT_READ: "read the audit log",
    METRICS_READ: "scrape /metrics where it is not open",
}
"""They see every tenant's work, so a key of one tenant cannot use them."""

TENANT_SCOPES: Final = {
    WEBHOOKS_READ: "see webhook endpoints and what they were told",
    WEBHOOKS_WRITE: "add endpoints, exchange their secrets, replay events",
}
"""Of the house as well, and kept apart by tenant."""
