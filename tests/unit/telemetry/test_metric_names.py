"""Names of metrics: one table has all of them, and what is published agrees with it."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.core import Metric as Family

from gateway.registry import extensions
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.names import METRICS, Metric, MetricCell

PACKAGE = Path(__file__).parents[3] / "gateway"
NAME = re.compile(r"(gateway|nv)_[a-z0-9_]+")
TABLES = frozenset(
    f"{package}/names.py" for package in ("telemetry", "events", "migration", "shadow")
)
NO_METRICS = frozenset(
    {"gateway_call_path", "gateway_attempt", "gateway_quota_notes", "gateway_completion_service"}
)


def named_metrics(path: Path) -> Iterator[str]:
    """Yield each text that is the name of a metric."""
    source = path.read_text("utf-8")
    if NAME.search(source) is None:  # most modules: to parse one takes a while
        return
    for node in ast.walk(ast.parse(source)):
        text = node.value if isinstance(node, ast.Constant) else None
        if isinstance(text, str) and NAME.fullmatch(text) and text not in NO_METRICS:
            yield text


def test_only_the_tables_name_metrics() -> None:
    """Whoever publishes a metric takes its name from a table."""
    files = {str(path.relative_to(PACKAGE)): path for path in sorted(PACKAGE.rglob("*.py"))}
    found = {name for name, path in files.items() if any(named_metrics(path))}
    assert {name for name in TABLES if name in files} == found


def test_names_occur_once() -> None:
    """A name belongs to one metric, and counters end as Prometheus wants it."""
    every = [*METRICS, *(each for found in extensions().values() for each in found.metrics)]
    names = [each.name for each in every]
    assert sorted(set(names)) == sorted(names)
    for each in every:
        is_counter = each.name.endswith("_total")
        assert is_counter == (each.kind == "counter") or each.name.startswith("nv_")
        assert re.fullmatch(r"[0-9A-Z].*\.", each.help), each


def test_published_metrics_are_those_of_the_table() -> None:
    """The name, the help and the kind of each family come from the table."""
    by_family = {each.family: each for each in METRICS}
    families: list[Family] = list(Metrics("1").registry.collect())
    for family in families:
        described = by_family[family.name]
        assert described.help == family.documentation
        assert described.kind == family.type
    assert len(families) > 20


@pytest.mark.parametrize(
    ("kind", "change", "sample"),
    [
        ("counter", lambda cell: cell.inc(), "toy_x_total"),
        ("gauge", lambda cell: cell.set(2), "toy_x"),
        ("histogram", lambda cell: cell.observe(1), "toy_x_sum"),
    ],
)
def test_a_layer_publishes_its_own_metric(
    kind: Any, change: Callable[[MetricCell], None], sample: str
) -> None:
    """Each series is made once, and the page has its value."""
    metrics = Metrics("1")
    metric = Metric("toy_x", kind, "X.", ("route",))
    for _ in range(2):
        change(metrics.cell(metric, route="r"))
    assert f'{sample}{{route="r"}} 2.0' in metrics.page("")[0].decode()
