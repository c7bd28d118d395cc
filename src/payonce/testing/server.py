"""Serves a simulator on the loopback, for clients in other processes."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import uvicorn

from payonce.kit.http import Application
from payonce.kit.outcomes import Unavailable

SHUTDOWN_LIMIT_S: Final = 1
BACKLOG: Final = 1_024


@asynccontextmanager
async def serving(application: Application, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    """Serves in this event loop until the block ends; yields the address. Port 0 takes any free one."""
    config = uvicorn.Config(
        application,
        lifespan="off",
        ws="none",
        log_config=None,
        log_level="critical",
        access_log=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_graceful_shutdown=SHUTDOWN_LIMIT_S,
    )
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    try:
        listener = socket.create_server((host, port), backlog=BACKLOG)
    except OSError as error:
        raise Unavailable(f"cannot listen on {host}:{port}: {error.strerror}; choose another port") from error
    await server.startup(sockets=[listener])
    try:
        yield f"http://{host}:{listener.getsockname()[1]}"
    finally:
        await server.shutdown(sockets=[listener])
        listener.close()
