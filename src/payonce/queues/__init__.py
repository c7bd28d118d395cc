"""Queue backends: implementations of the ports in engine/messages/ports.py, one package each."""
