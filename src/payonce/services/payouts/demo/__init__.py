"""`payonce demo payouts`."""
