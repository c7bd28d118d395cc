"""The message handlers of payments."""
