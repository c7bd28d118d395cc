"""`demo`: the command, and the parts that demonstrations share."""
