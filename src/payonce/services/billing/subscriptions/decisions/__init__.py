"""Operators' decisions about subscriptions and credit."""
