"""The SQL of payouts."""
