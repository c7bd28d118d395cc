"""A durable server with the API of Google Cloud Tasks, on PostgreSQL."""
