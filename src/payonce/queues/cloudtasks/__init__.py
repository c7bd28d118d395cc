"""Google Cloud Tasks as a queue: the backend that feeds it, and a server of our own that speaks its API."""
