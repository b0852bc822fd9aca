"""The files for monitoring systems: metrics and labels that they name exist. `test_pool_events` runs the queries."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
from collections import defaultdict
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from docs.test_docs_commands import parse
from prometheus_client.parser import text_string_to_metric_families
from stage.needs import program

from penstock.cli.monitoring import command
from penstock.observe.exposition import expose
from penstock.observe.meters import METERS, Meters

YAML: Any = importlib.import_module("yaml")  # its types are not installed
FOLDER = Path(str(files("penstock.observe"))) / "monitoring"
METRIC = re.compile(r"\b(penstock_\w+)(?:\{([^}]*)\})?")


def shown() -> dict[str, set[str]]:
    """The samples that `/metrics` shows once everything has happened, each with its labels."""
    meters, gauges = Meters(), {}
    for name, meter in METERS.items():
        labels = tuple("x" for _ in meter.labels)
        if meter.kind == "counter":
            meters.add(name, *labels)
        elif meter.kind == "histogram":
            meters.observe(name, 1.0, *labels)
        else:
            gauges[name] = {labels: 1.0}
    text, _ = expose(meters, gauges, "")
    found = [sample for family in text_string_to_metric_families(text.decode()) for sample in family.samples]
    samples: dict[str, set[str]] = defaultdict(set)
    for sample in found:
        samples[sample.name] |= set(sample.labels)
    return samples


def check(expression: str, *texts: str, samples: dict[str, set[str]]) -> set[str]:
    """Refuse metrics and labels that do not exist; the metrics that an expression reads."""
    used = METRIC.findall(expression)
    assert used, expression
    assert {name for name, _ in used} <= samples.keys(), expression
    for name, selector in used:
        assert set(re.findall(r"(\w+)\s*[=!]", selector)) <= samples[name], expression
    labels = set.intersection(*(samples[name] for name, _ in used))
    kept = set(re.findall(r"\w+", " ".join(re.findall(r"\bby \(([^)]*)\)", expression))))
    assert kept <= labels, expression
    told = {name for text in texts for name in re.findall(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}", text)}
    assert told <= kept, expression
    return {name for name, _ in used}


def test_metrics_and_labels_of_alerts_and_board_exist() -> None:
    samples, seen = shown(), set[str]()
    (group,) = YAML.safe_load((FOLDER / "alerts.yaml").read_text("utf-8"))["groups"]
    for rule in group["rules"]:
        parse(re.sub(r"\{\{.*?\}\}", "x", rule["annotations"]["runbook"]))
        assert rule["labels"]["severity"] in {"critical", "warning"}
        seen |= check(rule["expr"], *rule["annotations"].values(), samples=samples)
    assert len({rule["alert"] for rule in group["rules"]}) == len(group["rules"]) > 10
    page = (Path(__file__).parents[2] / "docs" / "observability.md").read_text("utf-8")
    assert {rule["alert"] for rule in group["rules"]} == set(re.findall(r"`(Penstock\w+)`", page))
    board = json.loads((FOLDER / "grafana.json").read_text("utf-8"))
    places = [(one["gridPos"]["x"], one["gridPos"]["y"]) for one in board["panels"]]
    assert len(set(places)) == len(places), "no panel covers another"
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            seen |= check(target["expr"], target["legendFormat"], samples=samples)
    assert len(seen) > 25
    with pytest.raises(AssertionError):
        check("penstock_jobs_lost > 0", samples=samples)
    with pytest.raises(AssertionError):
        check("max by (queue) (penstock_jobs_ready)", samples=samples)


def test_prometheus_takes_the_alerts() -> None:
    told = subprocess.run(
        [program("promtool", "prometheus"), "check", "rules", FOLDER / "alerts.yaml"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "SUCCESS" in told.stdout, told.stderr


def test_the_command_prints_the_files() -> None:
    for name, file in (("grafana", "grafana.json"), ("alerts", "alerts.yaml")):
        assert CliRunner().invoke(command, [name]).output == (FOLDER / file).read_text("utf-8")
    printed = CliRunner().invoke(command, ["axiom", "--dataset", "shop"]).output
    assert printed.count("['shop']") == 4
    assert "DATASET" not in printed
