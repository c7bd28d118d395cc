"""payonce: money moves once. Durable queues and recorded effects on PostgreSQL."""

import os

__version__ = "0.1.0"

# gRPC's own handlers of fork() end one child in four with a segmentation fault while calls are under way, before it
# becomes the program it was forked for. Nothing here calls gRPC in a forked child.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
# A port that is taken is told by us; gRPC's own line about it stands among log lines that are read as JSON.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
