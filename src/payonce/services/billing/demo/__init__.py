"""`payonce demo billing`."""
