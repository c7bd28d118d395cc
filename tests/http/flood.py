"""A client that opens many connections, sends requests without end on each, and reads no answer. Run as a module."""

import asyncio
import socket
import sys
from contextlib import suppress

PATHS = (b"/openapi.json", b"/healthz", b"/metrics")
REQUESTS = b"".join(b"GET %s HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n" % path for path in PATHS)
AT_ONCE = REQUESTS * 350
PAUSE_S = 0.5
"""Before a connection that was closed is opened again."""


async def flood(port: int, source: str) -> None:
    loop = asyncio.get_running_loop()
    while True:
        with socket.socket() as line:
            line.setblocking(False)
            with suppress(OSError):
                line.bind((source, 0))
                await loop.sock_connect(line, ("127.0.0.1", port))
                while True:
                    await loop.sock_sendall(line, AT_ONCE)
        await asyncio.sleep(PAUSE_S)


async def main(port: int, connections: int, sources: list[str]) -> None:
    tasks = [asyncio.create_task(flood(port, sources[number % len(sources)])) for number in range(connections)]
    print("flooding", flush=True)
    await asyncio.gather(*tasks)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
