"""Systems outside, one folder each: the port, the client that speaks its wire format, and a simulator of it."""
