"""The scopes of API keys for billing. Billing has no tenants: a key reads every customer."""

from typing import Final

READ: Final = "billing:read"
OPERATE: Final = "billing:operate"
CHARGE: Final = "billing:charge"

SCOPES: Final = {
    READ: "read customers, their subscriptions, invoices, usage and payments",
    OPERATE: "create and edit customers, start, change and end subscriptions, create plans, operate billing's queues",
    CHARGE: "charge and refund cards",
}

NO_TENANTS: Final = (
    "billing has no tenants, and its keys read every customer; create the key without a tenant, and run payonce "
    "with a separate database for each merchant whose customers must be isolated"
)
