"""Scopes of API keys: the platform's, and the catalogue with every service's."""

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
    QUEUES_READ: "list queues and their messages",
    QUEUES_STEER: "pause, resume and redrive",
    JOBS_READ: "read the job log and follow traces",
    EFFECTS_READ: "list calls to vendors and their outcomes",
    EFFECTS_ANSWER: "answer effects in review",
    APPROVALS_READ: "list approvals",
    APPROVALS_DECIDE: "grant and deny approvals",
    AUDIT_READ: "read the audit log",
    METRICS_READ: "read /metrics and health details where they need a key",
}
"""Scopes over every tenant's data, which a tenant's key cannot have."""

TENANT_SCOPES: Final = {
    WEBHOOKS_READ: "list webhook endpoints and deliveries",
    WEBHOOKS_WRITE: "add webhook endpoints, rotate secrets, replay events",
}
"""The platform's scopes whose routes separate tenants."""


@dataclass(frozen=True)
class ScopeCatalogue:
    """Every scope of this installation, for checking new keys."""

    allows: Mapping[str, str]
    """What each scope allows."""
    for_tenants: frozenset[str]
    """Scopes that a tenant's key can have."""
    tenant_refusals: Mapping[str, str]
    """By scope, a service's own reason and remedy for refusing it to a tenant's key."""

    def check(self, wanted: Sequence[str], tenant: str | None) -> None:
        """Raises Invalid for an unknown scope, and for one that a tenant's key cannot have."""
        for scope in wanted:
            if scope not in self.allows:
                raise Invalid(f"there is no scope {scope[:60]!r}; known are: {', '.join(self.allows)}")
            if tenant is not None and scope not in self.for_tenants:
                raise Invalid(f"a key of tenant {tenant!r} cannot have {scope}: {self._refusal(scope)}")

    def _refusal(self, scope: str) -> str:
        return self.tenant_refusals.get(scope) or (
            f"it gives access to every tenant's data; a tenant's key can have: {', '.join(sorted(self.for_tenants))}"
        )
