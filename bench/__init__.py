"""Benchmarks of payonce's queues against Python peers, in one interleaved run."""
