"""PostgreSQL: pools, sessions, transactions with a known end, migrations, leases, notifications and rate limits."""
