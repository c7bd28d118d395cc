"""The engine: queues, effects, ledger, leases and logs on PostgreSQL. It knows no service and no vendor."""
