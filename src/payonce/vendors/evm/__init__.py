"""Ethereum-compatible chains."""
