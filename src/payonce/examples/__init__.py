"""Small services to read, copy and break; they have the same rooms as the real ones."""
