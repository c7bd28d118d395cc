"""The card gateway: its port, the client, and a simulator with books."""
