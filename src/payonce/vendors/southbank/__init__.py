"""Southbank: does not deduplicate by reference, lists payments with a delay, and can void a reference."""
