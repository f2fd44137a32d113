"""Triton's names of metrics on the gateway's page, compared with the page of a real Triton."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as open_metrics_families,
)
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.cli_kit import Running, get
from tests.interop.gateways import serving
from tests.interop.programs import promtool
from tests.interop.servers.process import Command, Ports, RunningServer, running
from tests.interop.servers.triton import start as triton
from tests.interop.servers.triton.models import MODELS, Model

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

PENDING = "nv_inference_pending_request_count"
FAILURE = "nv_inference_request_failure"
CLIENTS = 6
Samples = dict[tuple[str, ...], float]


def models() -> Iterator[Model]:
    """Yield a model that batches, a slow one, one that fails, one with streams, and a cached one."""
    by_name = {model.name: model for model in MODELS}
    for name in ("add_sub", "slow", "fail_always", "versions"):
        yield by_name[name]
    yield dataclasses.replace(by_name["simple"], extra="response_cache { enable: true }")


def prepare(folder: Path, ports: Ports) -> Command:
    """Write the models, and return the command of a Triton with a cache."""
    command = triton.prepare(folder, ports, tuple(models()))
    return dataclasses.replace(command, words=(*command.words, "--cache-config=local,size=1048576"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running("triton", prepare, tmp_path_factory.mktemp("triton")) as found:
        yield found


@pytest.fixture(scope="module")
def gateways(
    server: RunningServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[str, Running]]:
    """Run a gateway that reads Triton's page, and one of two workers that does not."""
    folder = tmp_path_factory.mktemp("gateways")
    texts = {
        "page": f"url: 'oip+grpc://{server.grpc_address}', metrics: '{server.metrics_url}'",
        "workers": f"url: 'oip+http://{server.http_address}'",
    }
    with ExitStack() as stack:
        found = {}
        for name, upstream in texts.items():
            path = folder / f"{name}.yaml"
            path.write_text(
                "version: 1\nlisteners: [{http: '127.0.0.1:0'}]\n"
                "admin: {address: '127.0.0.1:0'}\n"
                f"upstreams: {{triton: {{{upstream}}}}}\n"
                "telemetry: {metrics: {compat: [triton]}}\n"
                f"workers: {2 if name == 'workers' else 1}\n"
            )
            found[name] = stack.enter_context(serving(str(path)))
        yield found


def page_of(url: str, accept: str = "text/plain") -> str:
    parts = urlsplit(url)
    with closing(HTTPConnection(parts.netloc, timeout=10)) as connection:
        connection.request("GET", parts.path, headers={"Accept": accept})
        return connection.getresponse().read().decode()


def samples(text: str) -> Samples:
    """Return the samples of models with Triton's names."""
    return {
        (
            sample.name.removesuffix("_total"),
            *(sample.labels.get(each, "") for each in ("model", "version", "reason")),
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("nv_") and "model" in sample.labels
    }


def types(text: str) -> dict[str, str]:
    return dict(re.findall(r"^# TYPE (nv_\S+) (\w+)$", text, re.MULTILINE))


def infer(gateway: Running, model: str, **inputs: list[int]) -> int:
    """Make one call; return the status."""
    shapes = {name: [len(values)] for name, values in inputs.items()}
    if model in {"add_sub", "simple"}:
        shapes = {name: [len(values) // 16, 16] for name, values in inputs.items()}
    body = {
        "inputs": [
            {"name": name, "datatype": "INT32", "shape": shapes[name], "data": values}
            for name, values in inputs.items()
        ]
    }
    return get(gateway.url(f"/v2/models/{model}/infer"), body)[0]


def load(gateway: Running) -> None:
    """Make calls of every model: rows in batches, repeated ones, and ones that fail."""
    for number in range(12):
        row = [number % 3] * 16
        assert infer(gateway, "add_sub", INPUT0=row * 4, INPUT1=row * 4) == 200
        assert infer(gateway, "simple", INPUT0=row, INPUT1=row) == 200
        assert infer(gateway, "slow", MS=[number]) == 200
        assert infer(gateway, "fail_always", INPUT0=[1]) != 200
        assert infer(gateway, "fail_always", WRONG=[1]) != 200
        assert infer(gateway, "versions", X=[number]) == 200


def admin_page(gateway: Running, accept: str = "text/plain") -> str:
    return page_of(gateway.url("/metrics", "admin"), accept)


@pytest.mark.parametrize("name", ["page", "workers"])
def test_the_page_has_what_triton_has(
    server: RunningServer, gateways: Mapping[str, Running], name: str
) -> None:
    """Every metric of a model is there with its type and labels; counts are equal, times within 1 %.

    Without the page of Triton all failures are OTHER.
    """
    gateway = gateways[name]
    first = samples(admin_page(gateway))
    assert set(samples(page_of(server.metrics_url))) == set(first), "labels of the first scrape"
    load(gateway)
    gateway_page = page_after_a_pause(gateway)
    theirs, ours = page_of(server.metrics_url), samples(gateway_page)
    assert types(theirs).items() >= types(gateway_page).items()
    expected = samples(theirs)
    assert set(expected) == set(ours)
    for key, value in expected.items():
        if key[0] == FAILURE and name == "workers":
            continue
        is_time = "duration" in key[0]
        assert ours[key] == (pytest.approx(value, rel=0.01, abs=50) if is_time else value), key
    for model in {key[1] for key in expected}:
        failures = [
            sum(value for key, value in found.items() if key[0] == FAILURE and key[1] == model)
            for found in (expected, ours)
        ]
        assert failures[0] == failures[1], model
    assert ours["nv_cache_num_hits_per_model", "simple", "1", ""] > 0
    assert all(value >= first[key] for key, value in ours.items() if key[0] != PENDING)


def page_after_a_pause(gateway: Running) -> str:
    """Return the page once Triton has been asked again: it is asked at most once a second."""
    threading.Event().wait(1.1)
    return admin_page(gateway)


@pytest.mark.parametrize("name", ["page", "workers"])
def test_pending_requests_are_those_of_triton(
    server: RunningServer, gateways: Mapping[str, Running], name: str
) -> None:
    """While as many clients as before wait for one instance, eight of ten samples differ by one."""
    gateway, ends = gateways[name], threading.Event()

    def call() -> None:
        while not ends.is_set():
            infer(gateway, "slow", MS=[20])

    threads = [threading.Thread(target=call) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    key = (PENDING, "slow", "1", "")
    try:
        close = 0
        for _ in range(10):
            ours = samples(page_after_a_pause(gateway))[key]
            theirs = samples(page_of(server.metrics_url))[key]
            close += abs(ours - theirs) <= 1
    finally:
        ends.set()
        for thread in threads:
            thread.join()
    assert close >= 8


def test_an_open_metrics_scrape_keeps_the_names(gateways: Mapping[str, Running]) -> None:
    """The type is unknown there, because counters of OpenMetrics end in `_total`."""
    text = admin_page(gateways["page"], "application/openmetrics-text; version=1.0.0")
    families = {
        family.name: family.type
        for family in open_metrics_families(text)  # type: ignore[no-untyped-call]  # half typed
        if family.name.startswith("nv_")
    }
    assert families.pop(PENDING) == "gauge"
    assert set(families.values()) == {"unknown"}
    assert set(families) == set(types(admin_page(gateways["page"]))) - {PENDING}


def test_promtool_complains_of_tritons_words_alone(gateways: Mapping[str, Running]) -> None:
    """The names and the units of Triton are not those that Prometheus advises; ours are."""
    done = subprocess.run(
        [promtool(), "check", "metrics"],
        input=admin_page(gateways["page"]),
        capture_output=True,
        text=True,
        check=False,
    )
    complaints = done.stderr.splitlines()
    assert [] == [line for line in complaints if not line.startswith("nv_")]
    assert complaints, "promtool was run"


def test_a_server_that_is_gone_leaves_its_last_values(tmp_path: Path) -> None:
    """No counter falls, the gauge tells that they are old, and the page comes at once."""
    with running("triton", prepare, tmp_path / "triton") as own:
        path = tmp_path / "gateway.yaml"
        path.write_text(
            "version: 1\nlisteners: [{http: '127.0.0.1:0'}]\nadmin: {address: '127.0.0.1:0'}\n"
            f"upstreams: {{triton: {{url: 'oip+grpc://{own.grpc_address}'}}}}\n"
            "telemetry: {metrics: {compat: [triton]}}\n"
        )
        with serving(str(path)) as gateway:
            load(gateway)
            before = page_after_a_pause(gateway)
            assert 'gateway_compat_stale{upstream="triton"} 0.0' in before
            own.process.kill()
            own.process.wait(30)
            after = page_after_a_pause(gateway)
            assert 'gateway_compat_stale{upstream="triton"} 1.0' in after
            counters = {k: v for k, v in samples(before).items() if k[0] != PENDING}
            assert counters == {k: v for k, v in samples(after).items() if k[0] != PENDING}
