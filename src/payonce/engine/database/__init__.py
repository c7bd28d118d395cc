"""PostgreSQL: pools, sessions, transactions with a known outcome, migrations, leases, notifications and rate limits."""
