"""Failovers under a running process: the primary is killed, and its synchronous standby is promoted.

Commits that the standby lacks are lost, and so is any trace of their transaction ids: the new primary assigns those to
the next writers. payonce is in quarantine afterwards, until an operator releases it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from payonce.embedded.roles import SUPERUSER
from payonce.engine.controls.quarantine.check import LOOK_AGAIN_S
from payonce.testing.cluster import FOLDER_PREFIX, Cluster, delete_nodes, replicating_installation
from payonce.testing.crash.server_crash import OTHERS_TABLE, QUIET, Session
from payonce.testing.servers import make_folder

RELEASED_AFTER_S: Final = LOOK_AGAIN_S + 5.0
"""Delay of the release: by then every message that wants to send is held, also one that waited for a retry."""


@dataclass
class Failover:
    """A failover that has happened, and its follow-up."""

    at: datetime
    """Time by the due clock."""
    started: int
    """The newest recorded send on the new primary."""
    noticed: bool = False
    sent_in_quarantine: bool = False
    released: bool = False

    def release_comes_before(self, following: datetime | None) -> bool:
        """Whether the release comes before the next due time."""
        return following is None or following > self.at + timedelta(seconds=RELEASED_AFTER_S)


async def newest_start(owner: Session) -> int:
    found: int = await owner.fetchval(
        "select coalesce(max(id), 0) from payonce.effect_attempts where event = 'started'"
    )
    return found


async def waits_for_standby(superuser: Session, application_name: str) -> bool:
    """Whether a COMMIT of this process waits for the standby."""
    found: bool = await superuser.fetchval(
        "select exists (select from pg_stat_activity where application_name = $1 and wait_event = 'SyncRep')",
        application_name,
    )
    return found


@contextmanager
def folder_of_clusters() -> Iterator[Path]:
    """The folder for the drivers' clusters. Deletes it at the end, with servers that killed drivers left behind."""
    replicating_installation()
    folder = make_folder(FOLDER_PREFIX)
    try:
        yield folder
    finally:
        for left_behind in folder.iterdir():
            delete_nodes(left_behind)
        folder.rmdir()


@contextmanager
def failover_cluster(folder: Path) -> Iterator[Cluster]:
    folder.mkdir(mode=0o755)
    with Cluster.make((), synchronous=True, folder=folder, settings=QUIET) as cluster:
        cluster.execute(OTHERS_TABLE)
        # Databases must exist on both servers: drivers try the standby first if it is named first.
        cluster.execute(f"alter role {SUPERUSER} set synchronous_commit = 'remote_apply'")
        yield cluster
