"""Rules of subscriptions without I/O."""
