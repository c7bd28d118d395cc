"""Split payouts: a subscription payment is priced, swapped at ChangeNOW, and paid by the host wallet."""
