"""The demonstration `transfers`."""
