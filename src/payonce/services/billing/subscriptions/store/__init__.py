"""The SQL of subscriptions."""
