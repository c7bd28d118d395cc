"""The message handlers of payouts, one module for each role."""
