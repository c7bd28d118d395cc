"""What a key may do with billing. Keys act for the house: they see every account."""

from typing import Final

READ: Final = "billing:read"
OPERATE: Final = "billing:operate"
CHARGE: Final = "billing:charge"

SCOPES: Final = {
    READ: "see accounts' subscriptions, invoices, usage and payments",
    OPERATE: "start, change and end subscriptions, make plans, steer billing's queues",
    CHARGE: "charge cards and give money back",
}
