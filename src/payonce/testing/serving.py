"""A simulator behind a real server on the loopback, for clients in other processes."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import uvicorn

from payonce.kit.http import Application

SHUTDOWN_LIMIT_S: Final = 1
BACKLOG: Final = 1_024


@asynccontextmanager
async def serving(application: Application) -> AsyncIterator[str]:
    """Serves in this loop until the block ends; answers with the address, whose port the system chose."""
    config = uvicorn.Config(
        application,
        lifespan="off",
        ws="none",
        log_config=None,
        log_level="critical",
        access_log=False,
        backlog=BACKLOG,
        timeout_graceful_shutdown=SHUTDOWN_LIMIT_S,
    )
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    listener = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
    await server.startup(sockets=[listener])
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        await server.shutdown(sockets=[listener])
        listener.close()
