"""Invariants of subscriptions."""
