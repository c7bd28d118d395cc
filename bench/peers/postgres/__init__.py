"""Queue libraries on PostgreSQL, one program each."""
