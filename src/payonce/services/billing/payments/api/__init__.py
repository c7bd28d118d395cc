"""The HTTP routes of payments."""
