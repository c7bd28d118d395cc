"""The demonstration `queue`."""
