"""The payloads of payouts and the tokens that carry them."""
