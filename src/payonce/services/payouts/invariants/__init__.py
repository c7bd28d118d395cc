"""Invariants of payouts and of the host wallet."""
