"""Benchmarks: how fast payonce's queues are beside the Python peers, in one interleaved run."""
