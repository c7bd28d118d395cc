"""Operators' decisions about payouts and the wallet's limits."""
