"""External systems, one folder each: the port, the client for the wire format, and a simulator."""
