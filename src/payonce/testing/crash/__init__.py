"""The crash explorer: kills or stops a process at every crossing of a scenario, or crashes its database server there or
fails over to a standby, and compares both sides' records.

    report = explore([MyScenario()])
    assert report.sound, report.summary()

A scenario is a class with the members of `Scenario`; `PlainScenario` has defaults for most of them.
"""

from payonce.testing.crash.ablations import ABLATIONS, Ablation
from payonce.testing.crash.backend import Backend
from payonce.testing.crash.explore import ON_POSTGRES, Progress, explore, explore_without
from payonce.testing.crash.model import (
    ALL_MODES,
    FAILOVER,
    PROCESS_MODES,
    SERVER_CRASH,
    USUAL_MODES,
    Crossing,
    Label,
    Mode,
    Point,
    Result,
    Violation,
    parse_modes,
    parse_point,
)
from payonce.testing.crash.report import AblationResult, Report
from payonce.testing.crash.scenario import Decision, MovableScenario, Now, PlainScenario, Reach, Scenario, Simulators
from payonce.testing.crash.scenarios import BUILT_IN

__all__ = [
    "ABLATIONS",
    "ALL_MODES",
    "BUILT_IN",
    "FAILOVER",
    "ON_POSTGRES",
    "PROCESS_MODES",
    "SERVER_CRASH",
    "USUAL_MODES",
    "Ablation",
    "AblationResult",
    "Backend",
    "Crossing",
    "Decision",
    "Label",
    "Mode",
    "MovableScenario",
    "Now",
    "PlainScenario",
    "Point",
    "Progress",
    "Reach",
    "Report",
    "Result",
    "Scenario",
    "Simulators",
    "Violation",
    "explore",
    "explore_without",
    "parse_modes",
    "parse_point",
]
