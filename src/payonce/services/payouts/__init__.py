"""Split payouts: a paid subscription becomes a payment in the coin and at the address that its owner asked for."""
