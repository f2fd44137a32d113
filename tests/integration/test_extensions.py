"""Open Inference's extensions through a whole gateway with models, and one with an upstream."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gateway.app import Gateway
from tests.integration.asking_kit import running
from tests.integration.cli_kit import Running, serving

pytestmark = pytest.mark.timeout(60)

EVERYTHING = "model_configuration: true, repository_index: true, model_control: true, trace: true, opaque: true"
MODELS = f"""
version: 1
listeners:
  - http: "127.0.0.1:0"
    options: {{oip: {{{EVERYTHING}, statistics: gateway, logging: gateway}}}}
admin: {{address: "127.0.0.1:0", metrics: null}}
models:
  plain: {{backend: python, options: {{callable: "gateway.backends.examples:simple"}}}}
  shared:
    backend: python
    options: {{callable: "gateway.backends.examples:simple"}}
    signature: {{max_batch_size: 8}}
    batching: {{max_batch_size: 4, max_delay: 200ms}}
    cache: {{max_age: 60s}}
pipelines:
  once:
    steps: {{one: {{model: plain, inputs: {{INPUT0: request.A, INPUT1: request.B}}}}}}
    outputs: {{S: one.OUTPUT0}}
lifecycle: {{pre_stop: 0s}}
"""
IN_FRONT = f"""
version: 1
listeners:
  - http: "127.0.0.1:0"
    options: {{oip: {{{EVERYTHING}, statistics: target, logging: target}}}}
admin: {{address: "127.0.0.1:0", metrics: null}}
upstreams:
  models: {{url: "oip+http://{{address}}"}}
routes:
  - match: {{model: other}}
    targets: [{{upstream: models, model: plain}}]
  - match: {{model: "*"}}
    targets: [{{upstream: models}}]
lifecycle: {{pre_stop: 0s}}
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Run a gateway with models of its own."""
    file = tmp_path_factory.mktemp("models") / "gateway.yaml"
    file.write_text(MODELS)
    with serving(str(file)) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def in_front(models: Running, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Run a gateway in front of that one."""
    file: Path = tmp_path_factory.mktemp("front") / "gateway.yaml"
    file.write_text(IN_FRONT.replace("{address}", models.addresses["main.http"]))
    with serving(str(file)) as gateway:
        yield gateway


def ask(gateway: Running | Gateway, path: str, body: Any = None) -> tuple[int, Any]:
    """Return status and JSON of a GET, or of a POST with *body*."""
    data = None if body is None else json.dumps(body).encode()
    url = f"http://{gateway.addresses['main.http']}{path}"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data)) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def infer(gateway: Running | Gateway, model: str, value: int = 1) -> int:
    """Return the status of an inference of one row."""
    inputs = [
        {"name": f"INPUT{n}", "shape": [1, 16], "datatype": "INT32", "data": [value] * 16}
        for n in range(2)
    ]
    return ask(gateway, f"/v2/models/{model}/infer", {"inputs": inputs})[0]


def counted(gateway: Running | Gateway, model: str) -> Any:
    """Return the statistics of a model of one version."""
    (found,) = ask(gateway, f"/v2/models/{model}/stats")[1]["model_stats"]
    return found


def test_batches_and_cache_hits_are_counted(models: Running) -> None:
    """Four requests run in batches, and a cached reply runs nothing."""
    with ThreadPoolExecutor(4) as threads:
        statuses = list(threads.map(lambda value: infer(models, "shared", value), range(4)))
    assert [200] * 5 == [*statuses, infer(models, "shared", 0)]
    found = counted(models, "shared")
    assert 5 == found["inference_count"] == found["inference_stats"]["success"]["count"]
    assert (1, 4) == tuple(
        found["inference_stats"][key]["count"] for key in ("cache_hit", "cache_miss")
    )
    rows = {each["batch_size"]: each["compute_infer"]["count"] for each in found["batch_stats"]}
    assert 4 == sum(size * count for size, count in rows.items())
    assert sum(rows.values()) == found["execution_count"]


def test_unload_makes_one_model_unavailable(models: Running) -> None:
    """Other models and the gateway stay ready; loading restores the model and its pipeline."""
    assert 200 == ask(models, "/v2/repository/models/plain/unload", {})[0]
    states = {entry["name"]: entry["state"] for entry in ask(models, "/v2/repository/index", {})[1]}
    assert {"plain": "UNAVAILABLE", "once": "UNAVAILABLE", "shared": "READY"} == states
    assert (409, 200) == (infer(models, "plain"), ask(models, "/v2/health/ready")[0])
    assert 200 == ask(models, "/v2/repository/models/plain/load", {})[0]
    assert 200 == infer(models, "plain")


def test_extensions_pass_through_another_gateway(models: Running, in_front: Running) -> None:
    """Requests use the names of the front's routes; replies are those of the gateway behind."""
    assert "other" == ask(in_front, "/v2/models/other/config")[1]["name"]
    assert 8 == ask(in_front, "/v2/models/shared/config")[1]["max_batch_size"]
    assert 200 == infer(in_front, "other")
    assert (
        counted(in_front, "plain")["inference_count"] == counted(models, "plain")["inference_count"]
    )
    assert 200 == ask(in_front, "/v2/repository/models/other/unload", {})[0]
    assert 503 == ask(models, "/v2/models/plain/ready")[0]
    assert 200 == ask(in_front, "/v2/repository/models/other/load", {})[0]
    index = ask(in_front, "/v2/repository/index", {})[1]
    assert {"name": "plain", "version": "1", "state": "READY"} in index


SIDECAR = """
version: 1
listeners:
  - http: "127.0.0.1:0"
    options: {{oip: {{statistics: {statistics}}}}}
admin: {{address: null, metrics: null}}
upstreams: {{models: {{url: "oip+http://{address}"}}}}
lifecycle: {{pre_stop: 0s}}
"""


@pytest.mark.parametrize(("statistics", "counted_here"), [("target", 0), ("gateway", 1)])
async def test_sidecar_counts_only_what_its_server_does_not_count(
    models: Running, statistics: str, counted_here: int
) -> None:
    """With `statistics: target` the counts of the server are read, and none are kept twice."""
    text = SIDECAR.format(statistics=statistics, address=models.addresses["main.http"])
    async with running(text) as gateway:
        assert 200 == await asyncio.to_thread(infer, gateway, "shared")
        assert counted_here == len(gateway.metrics.usage.of(None))
        found = await asyncio.to_thread(counted, gateway, "shared")
    assert found["inference_count"] >= 1


def test_log_setting_reaches_the_gateway_behind(models: Running, in_front: Running) -> None:
    """A log setting changed through the front applies at the gateway behind."""
    assert 1 == ask(in_front, "/v2/logging", {"log_verbose_level": 1})[1]["log_verbose_level"]
    assert 1 == ask(models, "/v2/logging")[1]["log_verbose_level"]
    assert 0 == ask(models, "/v2/logging", {"log_verbose_level": 0})[1]["log_verbose_level"]


def test_unmodelled_requests_get_the_upstream_error(in_front: Running) -> None:
    """Neither gateway knows the path; the error is that of the gateway behind."""
    status, document = ask(in_front, "/v2/models/other/explain", {})
    assert (501, True) == (status, "OpaqueCall" in document["error"])
    status, document = ask(in_front, "/v2/trace/setting")
    assert (501, "no upstream of this gateway has trace settings") == (status, document["error"])
