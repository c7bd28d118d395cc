"""The mint, a vendor that issues gift cards: the port, the client of its HTTP API, and a simulator."""
