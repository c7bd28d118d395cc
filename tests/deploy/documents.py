"""The alert rules and the dashboard in deploy/."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from tests.deploy.promql import Expression, duration_s, parsed

DEPLOY = Path(__file__).parents[2] / "deploy"


@dataclass(frozen=True)
class Alert:
    name: str
    expression: Expression
    for_s: float
    severity: str
    summary: str
    runbook: str


def read_yaml(path: str) -> Any:
    return yaml.safe_load((DEPLOY / path).read_text(encoding="utf-8"))


def alerts() -> dict[str, Alert]:
    found = {}
    for group in read_yaml("prometheus/payonce.rules.yml")["groups"]:
        for rule in group["rules"]:
            assert rule["alert"] not in found, f"{rule['alert']} stands there twice"
            found[rule["alert"]] = Alert(
                rule["alert"],
                parsed(rule["expr"]),
                duration_s(rule.get("for", "0s")),
                rule["labels"]["severity"],
                rule["annotations"]["summary"],
                rule["annotations"]["runbook"],
            )
    return found


def board() -> Any:
    return json.loads((DEPLOY / "grafana/dashboards/payonce.json").read_text(encoding="utf-8"))


def panel_queries() -> Iterator[tuple[str, str, str]]:
    """The title of the panel, the query, and the legend of its lines."""
    for panel in board()["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"], target["legendFormat"]
