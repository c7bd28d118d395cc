"""`payonce billing`."""
