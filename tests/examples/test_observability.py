"""The alert rules and the dashboard: Prometheus accepts their queries on real metrics."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from queue_over_sql import QueueService
from queue_over_sql.observability.prometheus import (
    DatabaseCollector,
    PrometheusObserver,
    exposition,
)

FOLDER = Path(__file__).parents[2] / "examples" / "observability"


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana reads it."""
    found: dict[str, Any] = json.loads((FOLDER / "grafana-dashboard.json").read_text())
    return found


def queries() -> list[str]:
    """Those of the dashboard, with what Grafana fills in."""
    found = [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]]
    return [each.replace("$__rate_interval", "5m").replace("$queue", ".*") for each in found]


def rules() -> list[dict[str, Any]]:
    """The alert rules."""
    (group,) = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def test_they_name_metrics_that_there_are(tmp_path: Path) -> None:
    """Each name in a query is exposed, and has the labels by which it is asked."""
    registry = CollectorRegistry()
    with QueueService(
        f"sqlite:///{tmp_path / 'q.db'}", observer=PrometheusObserver(registry)
    ) as service:
        service.create_queue("jobs")
        text = exposition(DatabaseCollector(service), registry=registry).decode()
    there = set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))
    there |= {f"{name}_{suffix}" for name in there for suffix in ("bucket", "count", "total")}
    named = set(re.findall(r"queue_over_sql_\w+", " ".join([*queries(), *map(str, rules())])))
    assert set() == named - there
    assert {"stat", "timeseries"} == {panel["type"] for panel in dashboard()["panels"]}


def test_rules_tell_targets_apart(tmp_path: Path) -> None:
    """With a queue of one name in two databases, each series is compared with its own target's."""
    series: dict[str, list[dict[str, str]]] = {}
    for instance in ("a:9000", "b:9000"):
        url = f"sqlite:///{tmp_path / instance[0]}.db"
        with QueueService(url) as service:
            service.create_queue("jobs", queue_limit=2)
            text = exposition(DatabaseCollector(service), registry=CollectorRegistry()).decode()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = {**sample.labels, "instance": instance}
                series.setdefault(sample.name, []).append(labels)
    compared = 0
    matching = re.compile(r" on \(([\w, ]+)\) (queue_over_sql_\w+)")
    for rule in rules():
        for on, name in matching.findall(rule["expr"]):
            labels = on.split(", ")
            found = {tuple(each[label] for label in labels) for each in series[name]}
            assert 2 == len(found), (rule["alert"], on)
            compared += 1
        # Added up, what two archives gain and lose might be nothing.
        assert "sum by (queue) (delta(" not in rule["expr"]
    assert compared == sum(each["expr"].count(" on (") for each in rules()) > 0


def test_no_panel_lies_over_another() -> None:
    """Each has its place in a row of 24 columns."""
    taken = [
        (x, y)
        for place in (panel["gridPos"] for panel in dashboard()["panels"])
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(taken) == len(set(taken))
    assert max(x for x, _ in taken) < 24
    ids = [panel["id"] for panel in dashboard()["panels"]]
    assert len(ids) == len(set(ids))


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_takes_rules_and_queries(tmp_path: Path) -> None:
    """Prometheus's own checker; a query is checked as a rule of its own."""
    records = [{"record": f"q{n}", "expr": query} for n, query in enumerate(queries())]
    as_rules = tmp_path / "queries.yml"
    as_rules.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": records}]}))
    for path in (FOLDER / "alerts.yml", as_rules):
        command = ["promtool", "check", "rules", str(path)]
        checked = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert 0 == checked.returncode, checked.stdout + checked.stderr
