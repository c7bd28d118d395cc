"""Decisions of people about subscriptions and credit."""
