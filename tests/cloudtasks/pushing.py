"""The command line of a payonce whose example is brought by a task service: run as a process."""

import os
import sys
from collections.abc import Sequence

from payonce.app import registry
from payonce.app.resources import open_task_server
from payonce.cli.application import run_command
from payonce.engine.messages.push import EnvelopeCodec, Target
from payonce.examples import tally
from payonce.service import Service
from payonce.services.payouts.settings import PayoutsSettings
from payonce.settings import Settings


def pushes(settings: Settings) -> Sequence[Target]:
    url, rate = os.environ.get("TALLY_URL"), settings.of(PayoutsSettings).changenow_per_s
    return [Target(tally.CHANGES.queue, "/", url, EnvelopeCodec(), vendor_per_s=rate)]


SERVICES = (
    Service("tally", "payonce.examples.tally", tally.ROLES, tally.INVARIANTS, pushes=pushes),
    Service("cloudtasks", "payonce.taskserver", {"server": ()}, runs={"server": open_task_server}),
)


def main() -> None:
    registry.SERVICES = SERVICES  # type: ignore[misc]
    sys.exit(run_command(sys.argv[1:]))


if __name__ == "__main__":
    main()
