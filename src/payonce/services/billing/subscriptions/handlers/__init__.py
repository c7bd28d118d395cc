"""The message handlers of subscriptions."""
