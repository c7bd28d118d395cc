"""The command line of a payonce whose example is brought by a task service: run as a process."""

import os
import sys
from collections.abc import Sequence

from payonce import app
from payonce.cli import run_command
from payonce.engine.push import EnvelopeCodec, Target
from payonce.examples import tally
from payonce.outside import open_task_server
from payonce.service import Service
from payonce.settings import Settings


def pushes(settings: Settings) -> Sequence[Target]:
    return [Target(tally.CHANGES.queue, "/", os.environ.get("TALLY_URL"), EnvelopeCodec())]


SERVICES = (
    Service("tally", "payonce.examples.tally", tally.ROLES, tally.INVARIANTS, pushes=pushes),
    Service("cloudtasks", "payonce.queues.cloudtasks.server", {"server": ()}, runs={"server": open_task_server}),
)


def main() -> None:
    app.SERVICES = SERVICES  # type: ignore[assignment, misc]
    sys.exit(run_command(sys.argv[1:]))


if __name__ == "__main__":
    main()
