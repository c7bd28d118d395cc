"""Implementations of the ports in engine/messages/ports.py, one folder each."""
