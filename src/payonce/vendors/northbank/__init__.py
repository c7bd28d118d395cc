"""Northbank: honours an idempotency key for a day."""
