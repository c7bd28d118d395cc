"""The HTTP routes of payouts."""
