"""Rules of payouts without I/O."""
