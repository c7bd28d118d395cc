"""Small services to read, copy and experiment with; their modules are those of real services."""
