"""Queues, leases and logs on PostgreSQL. Knows nothing of any service or vendor."""
