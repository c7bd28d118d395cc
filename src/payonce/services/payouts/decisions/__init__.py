"""Decisions of people about payouts and the wallet's limits."""
