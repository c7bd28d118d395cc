"""HTTP of a process: server, middleware, health and platform routes; `kit` is what all routes are written with."""
