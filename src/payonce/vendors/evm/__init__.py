"""Chains that speak Ethereum's language."""
