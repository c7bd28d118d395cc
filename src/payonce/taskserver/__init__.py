"""A durable server that speaks the API of Google Cloud Tasks, on PostgreSQL."""
