"""A real PgBouncer in front of a test's PostgreSQL, on a port of the loopback."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import asyncpg

from payonce.embedded import Server
from payonce.embedded.home import find_home
from payonce.kit.ports import reserved_ports
from payonce.testing import eventually

FOLDERS = ("/usr/sbin", "/usr/local/sbin")
"""Debian keeps it where only root's PATH leads."""


def find_pgbouncer() -> str | None:
    return shutil.which("pgbouncer") or shutil.which("pgbouncer", path=os.pathsep.join(FOLDERS))


@dataclass(frozen=True)
class PgBouncer:
    server: Server
    port: int
    log_path: Path

    def url(self, direct: str) -> str:
        """The same login and database, through the pooler."""
        parts = urlsplit(direct)
        return f"postgresql://{parts.username}@127.0.0.1:{self.port}{parts.path}"

    async def answers(self) -> bool:
        try:
            connection = await asyncpg.connect(self.url(self.server.owner_url), timeout=1)
        except (OSError, TimeoutError, asyncpg.PostgresError):
            return False
        await connection.close()
        return True


@asynccontextmanager
async def open_pgbouncer(program: str, server: Server, **settings: str) -> AsyncIterator[PgBouncer]:
    with _started(program, server, settings) as (pooler, process):
        await eventually(lambda: _answers(pooler, process), what="PgBouncer answers")
        yield pooler


@contextmanager
def _started(
    program: str, server: Server, settings: dict[str, str]
) -> Iterator[tuple[PgBouncer, "subprocess.Popen[bytes]"]]:
    with reserved_ports(1) as (port,), tempfile.TemporaryDirectory(prefix="payonce-pgbouncer-") as made:
        folder = Path(made)
        folder.chmod(0o755)
        config, log_path = folder / "pgbouncer.ini", folder / "log"
        config.write_text(_config(server, folder, port, settings))
        _userlist(folder).write_text("".join(f'"{_user(url)}" ""\n' for url in (server.owner_url, server.service_url)))
        # It refuses to run as root, and only the server's account may enter the folder of the server's socket.
        account = find_home(server.data_dir).account
        become = [f"--reuid={account.uid}", f"--regid={account.gid}", "--clear-groups"] if account.switch else []
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                ["setpriv", *become, "--pdeathsig", "KILL", program, str(config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
            )
        try:
            yield PgBouncer(server, port, log_path), process
        finally:
            process.kill()
            process.wait()


async def _answers(pooler: PgBouncer, process: "subprocess.Popen[bytes]") -> bool:
    assert process.poll() is None, f"PgBouncer ended:\n{pooler.log_path.read_text()}"
    return await pooler.answers()


def _config(server: Server, folder: Path, port: int, settings: dict[str, str]) -> str:
    query = parse_qs(urlsplit(server.service_url).query)
    chosen = {
        "listen_addr": "127.0.0.1",
        "listen_port": str(port),
        "unix_socket_dir": "",
        "auth_type": "trust",
        "auth_file": str(_userlist(folder)),
        "max_client_conn": "300",
        "default_pool_size": "60",
        **settings,
    }
    lines = [f"* = host={query['host'][0]} port={query['port'][0]}", "[pgbouncer]"]
    return "\n".join(["[databases]", *lines, *(f"{name} = {value}" for name, value in chosen.items())]) + "\n"


def _userlist(folder: Path) -> Path:
    return folder / "userlist.txt"


def _user(url: str) -> str:
    return urlsplit(url).username or ""
