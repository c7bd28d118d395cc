"""Small, pure building blocks without I/O of their own."""
