"""docs/metrics.md, the Grafana dashboard and the alert rules name what there is, and nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from gpufs.observe.exposition import families

DOCS = Path(__file__).parents[2] / "docs"
DOCUMENT = (DOCS / "metrics.md").read_text()
DASHBOARD: dict[str, Any] = json.loads((DOCS / "grafana" / "gpufs.json").read_text())
RULES: dict[str, Any] = yaml.safe_load((DOCS / "prometheus" / "alerts.yml").read_text())

ROW = re.compile(r"^\| `(gpufs_\w+)` \| (\w*) *\| (.+) \|$", re.MULTILINE)
NAME = re.compile(r"\bgpufs_\w+")
PARTS = {
    "counter": ("_total",),
    "gauge": ("",),
    "histogram": ("_bucket", "_sum", "_count"),
}
SAMPLES = {"gpufs_up", "gpufs_build_info"} | {
    family.name + part for family in families() for part in PARTS[family.type]
}


def test_the_document_lists_exactly_what_there_is() -> None:
    expected = {
        family.name + ("_total" if family.type == "counter" else ""): (family.unit, family.help)
        for family in families()
    }
    assert {name: (unit, help) for name, unit, help in ROW.findall(DOCUMENT)} == expected
    assert len(ROW.findall(DOCUMENT)) == len(expected)


def test_the_document_names_nothing_else() -> None:
    known = SAMPLES | {family.name for family in families()}
    assert not set(NAME.findall(DOCUMENT)) - known


def test_the_alert_rules_name_what_there_is() -> None:
    rules = [rule for group in RULES["groups"] for rule in group["rules"]]
    assert len(rules) >= 8
    for rule in rules:
        assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
        names = set(NAME.findall(rule["expr"]))
        assert names and not names - SAMPLES, rule["alert"]
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["annotations"]["summary"] and rule["annotations"]["description"]
        assert rule["expr"].count("(") == rule["expr"].count(")")
    assert len({rule["alert"] for rule in rules}) == len(rules)


def panels() -> Iterator[dict[str, Any]]:
    yield from DASHBOARD["panels"]


def test_the_dashboard_asks_for_what_there_is() -> None:
    asked: set[str] = set()
    for panel in panels():
        for target in panel["targets"]:
            names = set(NAME.findall(target["expr"]))
            assert names and not names - SAMPLES, target["expr"]
            assert target["expr"].count("(") == target["expr"].count(")")
            asked |= names
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD["panels"])))
    assert used - {"__rate_interval"} == variables
    assert len(asked) > 25


def test_every_panel_of_the_dashboard_says_what_it_shows_and_has_a_place_of_its_own() -> None:
    taken: set[tuple[int, int]] = set()
    ids = set()
    for panel in panels():
        assert panel["title"] and panel["description"] and panel["fieldConfig"]["defaults"]["unit"]
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken and place["x"] + place["w"] <= 24, panel["title"]
        taken |= cells
        ids.add(panel["id"])
    assert len(ids) == len(DASHBOARD["panels"])
