"""What API keys may do: the platform's scopes, and the catalogue of them and of every service's own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from payonce.kit.outcomes import Invalid

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

PLATFORM_SCOPES: Final = {
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


@dataclass(frozen=True)
class ScopeCatalogue:
    """Every scope of this installation. Whatever makes a key checks its scopes here."""

    allows: Mapping[str, str]
    """What each scope allows."""
    for_tenants: frozenset[str]
    """Those that a key of a tenant can have."""
    tenant_refusals: Mapping[str, str]
    """Why a key of a tenant cannot have a scope and what to do instead, where its service says so."""

    def check(self, wanted: Sequence[str], tenant: str | None) -> None:
        """Raises Invalid for an unknown scope, and for one that no route takes from a key of a tenant."""
        for scope in wanted:
            if scope not in self.allows:
                raise Invalid(f"there is no scope {scope[:60]!r}; known are: {', '.join(self.allows)}")
            if tenant is not None and scope not in self.for_tenants:
                raise Invalid(f"a key of tenant {tenant!r} cannot have {scope}: {self._refusal(scope)}")

    def _refusal(self, scope: str) -> str:
        return self.tenant_refusals.get(scope) or (
            "it sees the work of every tenant, so no route takes it from a key of one; such a key can have: "
            f"{', '.join(sorted(self.for_tenants))}"
        )
