"""Operators' brakes: freezes and velocity limits before a send, and a second person before what moves much."""

from payonce.engine.controls.actions import (
    Chosen,
    Redrive,
    ReviewAnswer,
    ThresholdChange,
    WriteOff,
    amounts_of,
    answering,
    bounding,
    chosen_of,
    ids_of,
    in_review_of,
    redrive_of,
    redriving,
    threshold_change_of,
    unknown_of,
    what_follows,
    writing_off,
)  # fmt: skip
from payonce.engine.controls.approvals import (
    Action,
    Actions,
    Approval,
    Done,
    Link,
    Preview,
    Verdict,
    Weighed,
    approval_of,
    approvals,
    ask,
    asker_of,
    deny,
    grant,
    needs_second_person,
    preview,
    waiting_about,
    withdraw,
)  # fmt: skip
from payonce.engine.controls.freeze_rules import (
    Freeze,
    UnderWay,
    check_asset,
    check_freezes,
    freeze,
    freeze_of,
    freezes,
    lift,
    never_seen,
    sends_under_way,
    wait_until_quiet,
)  # fmt: skip
from payonce.engine.controls.thresholds import Threshold, remove_threshold, set_threshold, thresholds
from payonce.engine.controls.velocity_limits import Limit, Used, check_limits, limits, remove_limit, set_limit

CHECKS = (check_freezes, check_limits)
"""What a worker asks in every intent transaction. Freezes first: their lock must be taken before any row of a limit."""

__all__ = [
    "CHECKS", "Action", "Actions", "Approval", "Chosen", "Done", "Freeze", "Limit", "Link", "Preview", "Redrive",
    "ReviewAnswer", "Threshold", "ThresholdChange", "UnderWay", "Used", "Verdict", "Weighed", "WriteOff",
    "amounts_of", "answering", "approval_of", "approvals", "ask", "asker_of", "bounding", "check_asset",
    "check_freezes", "check_limits", "chosen_of", "deny", "freeze", "freeze_of", "freezes", "grant", "ids_of",
    "in_review_of",
    "lift", "limits", "needs_second_person", "never_seen", "preview", "redrive_of", "redriving", "remove_limit",
    "remove_threshold", "sends_under_way", "set_limit", "set_threshold", "threshold_change_of", "thresholds",
    "unknown_of", "wait_until_quiet", "waiting_about", "what_follows", "withdraw", "writing_off",
]  # fmt: skip
