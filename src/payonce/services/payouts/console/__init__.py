"""The console pages of payouts."""
