"""What a key may do with billing. Billing has no tenants: a key sees every customer."""

from typing import Final

READ: Final = "billing:read"
OPERATE: Final = "billing:operate"
CHARGE: Final = "billing:charge"

SCOPES: Final = {
    READ: "see customers, their subscriptions, invoices, usage and payments",
    OPERATE: "create and edit customers, start, change and end subscriptions, make plans, steer billing's queues",
    CHARGE: "charge cards and give money back",
}

NO_TENANTS: Final = (
    "billing has no tenants, and its keys see every customer; make the key without a tenant, and run payonce with a "
    "database of its own for each merchant whose customers must be kept apart"
)
