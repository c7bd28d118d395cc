"""Queue libraries on Redis, one program each."""
