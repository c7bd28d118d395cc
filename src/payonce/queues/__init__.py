"""Implementations of the ports in engine/queue.py, one folder each."""
