"""Pure rules of subscriptions, without I/O."""
