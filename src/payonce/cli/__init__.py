"""The command line: one file per group of commands. `application` puts them together."""
