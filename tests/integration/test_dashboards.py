"""Dashboards and alerts: every metric and label that they use exists."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import trustme
import yaml
from prometheus_client.parser import text_string_to_metric_families

from gateway.telemetry import names
from gateway.telemetry.reload_metrics import ReloadMetrics
from tests.integration.asking_kit import ask, running, urls

DEPLOY = Path(__file__).parents[2] / "deploy"
CONFIG = """
version: 1
listeners: [{http: "127.0.0.1:0", grpc: "127.0.0.1:0"}]
admin: {address: null, metrics: null}
lifecycle: {pre_stop: 0s, drain: 1s}
upstreams:
  dead: {url: "oip+http://127.0.0.1:1"}
models:
  simple:
    backend: python
    options: {callable: "gateway.backends.examples:simple"}
    batching: {}
    cache: {max_age: 1s}
"""
PARTS_OF_ACCESS = ("gateway_authentication_", "gateway_access_", "gateway_quota_")
# Only a gateway with clients, rules and a store publishes them: see the tests of access and quotas.
OF_ACCESS = [
    each
    for each in vars(names).values()
    if isinstance(each, names.Metric) and each.name.startswith(PARTS_OF_ACCESS)
]
NAME = re.compile(r"\b(?:gateway|nv)_[a-z0-9_]+")
SELECTOR = re.compile(r"\b((?:gateway|nv)_[a-z0-9_]+)\{([^}]*)\}")
GROUPING = re.compile(r"(?:by|on) \(([^)]*)\)")
LEGEND = re.compile(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}")


def expressions() -> Iterator[tuple[str, str, str]]:
    """Yield the file, the expression and the text that names its labels."""
    for path in sorted(DEPLOY.glob("grafana/*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                yield path.name, target["expr"], target["legendFormat"]
    for path in sorted(DEPLOY.glob("prometheus/*.yaml")):
        for group in yaml.safe_load(path.read_text())["groups"]:
            for rule in group["rules"]:
                yield path.name, rule["expr"], str(rule.get("annotations", {}).get("summary", ""))


async def published(folder: Path) -> dict[str, set[str]]:
    """Return the labels of every sample that a gateway publishes, after one call of each kind."""
    certificate, pem = trustme.CA().issue_cert("localhost"), str(folder / "server.pem")
    certificate.private_key_and_cert_chain_pem.write_to_path(pem)
    secure = f"{{name: secure, http: '127.0.0.1:0', tls: {{cert: {pem}, key: {pem}}}}}"
    async with running(CONFIG.replace('"}]', f'"}}, {secure}]', 1)) as gateway:
        gateway._certificates._counts["listener secure", "applied"] = 1
        gateway.metrics.registry.register(ReloadMetrics(0.0))
        gateway.metrics.endpoint_ejected("dead", "127.0.0.1:1", "failures")
        gateway.metrics.retry("simple", "connect_failure", "ok")
        gateway.metrics.limit_exceeded("oip.http", "queue")
        gateway.metrics.loop_lag.observe(0.0)
        a = np.arange(16, dtype=np.int32).reshape(1, 16)
        await ask(urls(gateway, "simple")["oip.http"], "simple", {"INPUT0": a, "INPUT1": a})
        _, writer = await _garbage(gateway.addresses["main.http"])
        writer.close()
        page = gateway.metrics.page("")[0].decode()
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found | {each.name: set(each.labels) for each in OF_ACCESS}


async def _garbage(address: str) -> tuple[bytes, asyncio.StreamWriter]:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n")
    return await reader.readline(), writer


async def test_every_metric_and_label_is_published(tmp_path: Path) -> None:
    """Selectors, groupings and legends use labels of the metrics in their expression."""
    exists = await published(tmp_path)
    used = 0
    for file, expression, legend in expressions():
        used_names = [name for name in NAME.findall(expression) if "{" not in name]
        labels: set[str] = set()
        for name in used_names:
            assert name in exists, f"{file}: no metric {name}"
            labels |= exists[name]
            used += 1
        for name, selector in SELECTOR.findall(expression):
            for label in re.findall(r"(\w+)\s*(?:=~|!=|!~|=)", selector):
                assert label in exists[name], f"{file}: {name} has no label {label}"
        if used_names:
            for grouping in GROUPING.findall(expression):
                missing = {each.strip() for each in grouping.split(",")} - labels
                assert not missing, f"{file}: {expression} has no {missing}"
            missing = set(LEGEND.findall(legend)) - labels
            assert not missing, f"{file}: {legend} has no {missing}"
    assert used > 40


def test_alerts_use_recorded_rules() -> None:
    """An alert on a rule that is not recorded would never fire."""
    rules = yaml.safe_load((DEPLOY / "prometheus/recording.yaml").read_text())["groups"][0]["rules"]
    recorded = {rule["record"] for rule in rules}
    text = (DEPLOY / "prometheus/alerts.yaml").read_text()
    used = set(re.findall(r"gateway:[\w:]+", text))
    assert used
    assert used <= recorded


def test_the_dashboard_of_access_has_each_metric_of_access() -> None:
    """The metric of rehearsed rules was on none, and that of a new part would not be either."""
    text = (DEPLOY / "grafana/access.json").read_text()
    assert len(OF_ACCESS) >= 7
    assert [] == [each.name for each in OF_ACCESS if each.name not in text]


@pytest.mark.parametrize("name", ["overview", "models", "upstreams", "migration", "access"])
def test_each_dashboard_has_a_unique_id(name: str) -> None:
    """Grafana imports them side by side."""
    board = json.loads((DEPLOY / f"grafana/{name}.json").read_text())
    assert f"tensor-gateway-{name}" == board["uid"]
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
