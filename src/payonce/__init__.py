"""payonce: money moves once. Durable queues and recorded effects on PostgreSQL."""

__version__ = "0.1.0"
