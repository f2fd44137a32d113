"""The metrics page of one and of two workers, with every feature on, read strictly."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from http.client import HTTPConnection
from typing import Any

import pytest
import trustme
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_families
from prometheus_client.parser import text_string_to_metric_families as plain_families

from gateway.access.key_file import KeyFile, save_key_file
from gateway.telemetry import names
from tests.integration.cli_kit import Running, serving
from tests.integration.tls_kit import write_pair
from tests.integration.workers_kit import BODY

pytestmark = pytest.mark.timeout(120)

OPEN = "application/openmetrics-text; version=1.0.0"
_FAMILY = re.compile(r"# (HELP|TYPE) (\S+) ")
SIMPLE = {"backend": "python", "options": {"callable": "gateway.backends.examples:simple"}}
KEY = "tg_0123456789abcdefghijklmnopqrstuvwxyzABCD"
TLS = {"cert": "server.pem", "key": "server.key"}


def config(workers: int, dead: int) -> dict[str, Any]:
    """Return a configuration in which every feature with metrics is on; nobody is at port *dead*."""
    url = f"http://127.0.0.1:{dead}"
    targets = [{"upstream": "old", "weight": 100}, {"upstream": "new", "weight": 0}]
    return {
        "version": 1,
        "workers": workers,
        "listeners": [
            {"name": "plain", "http": "127.0.0.1:0", "metrics": True, "authentication": "optional"},
            {"name": "tls", "http": "127.0.0.1:0", "tls": TLS, "authentication": "required"},
        ],
        "admin": {"address": "127.0.0.1:0", "metrics": None, "tls": TLS},
        "telemetry": {"metrics": {"compat": ["triton"]}},
        "clients": {"fraud": {"tier": "gold"}},
        "security": {
            "keys": {"file": "keys.yaml"},
            "rules": [
                {"clients": "anonymous", "operations": ["inference", "metrics", "statistics"]},
                {"effect": "deny", "clients": "anonymous", "operations": "all", "models": "closed"},
            ],
        },
        "quotas": {"day": {"limit": "1000/day"}},
        "models": {
            "simple": {**SIMPLE, "batching": {}, "cache": {"max_bytes": "1MiB"}},
            "closed": SIMPLE,
        },
        "residency": {"models": 2},
        "upstreams": {"old": {"url": url}, "new": {"url": url.replace("127.0.0.1", "127.0.0.2")}},
        "routes": [
            {"name": "own", "match": {"model": "simple"}, "targets": [{"model": "simple"}]},
            {"name": "moved", "targets": targets},
        ],
        "migrations": {
            "moved": {"route": "moved", "old": "old", "new": "new", "sample": {"percent": 100}}
        },
        "events": {"sink": {"url": url, "payload": "none"}},
        "state": {"directory": "state"},
        "stock": {},
        "lifecycle": {"pre_stop": "0s"},
    }


@pytest.fixture(scope="module", params=[1, 2])
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("page")
    write_pair(folder, trustme.CA())
    now = datetime(2026, 11, 26, tzinfo=UTC)
    save_key_file(folder / "keys.yaml", KeyFile.new().added("fraud", KEY, now))
    (folder / "state").mkdir()
    file = folder / "gateway.yaml"
    with closing(socket.socket()) as unused:
        unused.bind(("127.0.0.1", 0))
        file.write_text(json.dumps(config(request.param, unused.getsockname()[1])))
        with serving(str(file)) as found:
            for model in ("simple", "closed", "absent") * 2:
                fetch(found, "POST", f"/v2/models/{model}/infer", BODY)
            yield found


def fetch(
    running: Running, method: str, path: str, body: str | None = None, accept: str = ""
) -> tuple[int, str]:
    """Send a request over a connection of its own, which any worker may get."""
    with closing(HTTPConnection(running.addresses["plain.http"], timeout=60)) as connection:
        connection.request(method, path, body, {"accept": accept} if accept else {})
        response = connection.getresponse()
        return response.status, response.read().decode()


@pytest.mark.parametrize("accept", ["", OPEN])
def test_each_family_and_each_sample_is_on_the_page_once(running: Running, accept: str) -> None:
    """Whatever processes have it, such as the certificates of listeners and of the admin port."""
    status, text = fetch(running, "GET", "/metrics", accept=accept)
    assert 200 == status
    heads: list[tuple[str, str]] = []
    family = ""
    samples: list[str] = []
    for line in text.splitlines():
        head = _FAMILY.match(line)
        if head is not None:
            heads.append((head[1], head[2]))
            family = head[2]
        elif line != "# EOF":
            assert line.startswith(family), "a sample is before its TYPE, or below another one"
            samples.append(line.partition(" # ")[0].rpartition(" ")[0])
    assert len(heads) == len(set(heads))
    assert {name for kind, name in heads if kind == "HELP"} == {
        name for kind, name in heads if kind == "TYPE"
    }
    assert len(samples) == len(set(samples))
    parse: Any = open_families if accept else plain_families  # the first one is strict
    found = {each.name for each in parse(text)}
    shown = {
        names.TLS_RELOADS,
        names.TLS_CERTIFICATE_EXPIRY,
        names.ACCESS_DENIED,
        names.QUOTA_USED,
        names.BATCH_ROWS,
        names.CACHE_LOOKUPS,
        names.RESIDENCY_MODELS,
        names.UPSTREAM_ATTEMPTS,
        names.TRITON_COUNT,
    }
    assert set() == {each.family for each in shown} - found
    assert {"gateway_events_sampled", "gateway_migration_sampled"} <= found
    assert (bool(accept), True) == (text.endswith("# EOF\n"), text.endswith("\n"))
