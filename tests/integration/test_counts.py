"""Counters, logs and ids of a whole gateway equal what its clients saw, exactly."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from gateway.app import Gateway
from gateway.app import connect as client
from gateway.ir.calls import InferRequest
from gateway.ir.context import Context, ModelRef
from gateway.ir.errors import GatewayError
from gateway.ir.tensors.tensor import array_tensor
from gateway.policies.complete.policy import Complete
from gateway.settings.units import parse_url
from tests.integration.asking_kit import WHOLE, ask, running, urls
from tests.integration.cli_kit import serving
from tests.integration.workers_kit import PATIENCE_S, connect, eventually, metrics, two_workers
from tests.integration.workers_kit import ask as ask_worker

MODELS = """
models:
  simple: {backend: python, options: {callable: "gateway.backends.examples:simple"}}
  fail: {backend: python, options: {callable: "gateway.backends.examples:fail"}}
"""
HEAD = """
version: 1
listeners: [{http: "127.0.0.1:0", grpc: "127.0.0.1:0", limits: {message_bytes: 64KiB}}]
admin: {address: null, metrics: null}
lifecycle: {pre_stop: 0s, drain: 1s}
telemetry: {log: {calls_per_second: 100000}}
"""
FRONT = """
upstreams:
  stable: {{url: "oip+grpc://{grpc}"}}
  canary: {{url: "oip+http://{http}"}}
  dead: {{url: "oip+http://127.0.0.1:1", options: {{dialect: triton}}}}
routes:
  - {{name: own, match: {{model: simple}}, targets: [{{model: simple}}]}}
  - name: far
    match: {{model: far}}
    targets:
      - {{upstream: stable, model: simple, weight: 9}}
      - {{upstream: canary, model: fail, weight: 1}}
  - {{name: gone, match: {{model: gone}}, targets: [{{upstream: dead}}]}}
"""

KINDS = ("InferRequest", "Passthrough")
A = np.arange(16, dtype=np.int32).reshape(1, 16)
INPUTS = {"INPUT0": A, "INPUT1": A}
BODY: dict[str, Any] = {
    "inputs": [
        {"name": name, "shape": [1, 16], "datatype": "INT32", "data": list(range(16))}
        for name in INPUTS
    ]
}


def samples(gateway: Gateway, name: str, *labels: str) -> dict[tuple[str, ...], float]:
    """Return the values of a metric by some of its labels, added up over the others."""
    return page_samples(gateway.metrics.page("")[0].decode(), name, *labels)


def page_samples(page: str, name: str, *labels: str) -> dict[tuple[str, ...], float]:
    found: defaultdict[tuple[str, ...], float] = defaultdict(float)
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name == name and sample.labels.get("kind", "InferRequest") in KINDS:
                found[tuple(sample.labels[label] for label in labels)] += sample.value
    return {key: value for key, value in found.items() if value}


async def post(session: aiohttp.ClientSession, gateway: Gateway, path: str, **body: Any) -> Any:
    """POST to the gateway, and return the status and the request id."""
    url = f"http://{gateway.addresses['main.http']}{path}"
    async with session.post(url, headers={"User-Agent": "counter/1"}, **body) as response:
        await response.read()
        return response.status, response.headers.get("x-request-id")


async def ask_everyone(gateway: Gateway, times: int) -> Counter[tuple[str, ...]]:
    """Call a model in every protocol, and return how many calls replied."""
    seen: Counter[tuple[str, ...]] = Counter()
    for protocol, url in urls(gateway, "simple").items():
        for _ in range(times):
            found = await ask(url, "simple", INPUTS)
            assert (2 * A).tolist() == found["OUTPUT0"].tolist()
            seen["own", "simple", protocol, "ok", "local/simple"] += 1
    return seen


async def test_counters_match_the_calls_of_clients() -> None:
    """Calls by label, attempts by endpoint, times and bytes match a mix of outcomes."""
    async with (
        running(HEAD + MODELS) as back,
        running(
            HEAD
            + MODELS
            + FRONT.format(grpc=back.addresses["main.grpc"], http=back.addresses["main.http"])
        ) as front,
        aiohttp.ClientSession() as session,
    ):
        seen = await ask_everyone(front, 5)
        far = Counter(
            [(await post(session, front, "/v2/models/far/infer", json=BODY))[0] for _ in range(200)]
        )
        assert Counter({200: 180, 400: 20}) == far
        seen["far", "far", "oip.http", "ok", "stable/simple"] = far[200]
        seen["far", "far", "oip.http", "invalid_argument", "canary/fail"] = far[400]
        gone_statuses = [
            (await post(session, front, "/v2/models/gone/infer", json=BODY))[0] for _ in "abc"
        ]
        assert [503] * 3 == gone_statuses
        seen["gone", "gone", "oip.http", "unavailable", "dead"] = len(gone_statuses)
        unknown = await post(session, front, "/v2/models/nobody/infer", json=BODY)
        assert 404 == unknown[0]
        seen["", "_unknown", "oip.http", "not_found", ""] = 1
        labels = ("route", "model", "protocol", "code", "target")
        assert dict(seen) == samples(front, "gateway_requests_total", *labels)
        hosts = {name: back.addresses[f"main.{name}"] for name in ("grpc", "http")}
        attempts = samples(front, "gateway_upstream_attempts_total", "upstream", "endpoint", "code")
        retries = samples(front, "gateway_retries_total", "route")
        assert {
            ("stable", hosts["grpc"], "ok"): 180,
            ("canary", hosts["http"], "invalid_argument"): 20,
            ("dead", "127.0.0.1:1", "unavailable"): len(gone_statuses) + retries["gone",],
        } == attempts
        by_model: Counter[tuple[str, ...]] = Counter()
        for (_, model, *_), count in seen.items():
            by_model[model,] += count
        for name in ("upstream", "queue", "overhead"):
            counted = samples(front, f"gateway_{name}_duration_seconds_count", "model")
            assert (name, dict(by_model)) == (name, counted)
        _check_times(front)


def _check_times(gateway: Gateway) -> None:
    """Time upstream, in queues and in the gateway are the whole time, within 5 %."""
    total = samples(gateway, "gateway_request_duration_seconds_sum")[()]
    parts = [
        sum(samples(gateway, f"gateway_{name}_duration_seconds_sum").values())
        for name in ("upstream", "queue", "overhead")
    ]
    assert sum(parts) == pytest.approx(total, rel=0.05)
    assert parts[0] > 0


REJECTIONS: Mapping[str, tuple[int, str, Mapping[str, Any]]] = {
    "no_json": (400, "/v2/models/simple/infer", {"data": b"{"}),
    "no_inputs": (400, "/v2/models/simple/infer", {"data": b"{}"}),
    "unknown_path": (404, "/nowhere", {"data": b""}),
    "too_large": (413, "/v2/models/simple/infer", {"data": bytes(128 << 10)}),
    "bad_header": (
        400,
        "/api/infer/simple",
        {"data": b"", "headers": {"NV-InferRequest": "batch_size: x"}},
    ),
    "graphpipe": (200, "/graphpipe/simple", {"data": b"no flatbuffer"}),
}


@pytest.mark.parametrize("name", REJECTIONS)
async def test_each_rejection_is_logged_with_its_request_id(name: str) -> None:
    """The client gets the id of the log line, even when its message is unreadable."""
    status, path, body = REJECTIONS[name]
    async with running(HEAD + MODELS) as gateway, aiohttp.ClientSession() as session:
        url = f"http://{gateway.addresses['main.http']}{path}"
        for own in (None, "client-1"):
            headers = {"User-Agent": "counter/1", **body.get("headers", {})}
            headers |= {} if own is None else {"x-request-id": own}
            with capture_logs() as logs:
                async with session.post(url, **{**body, "headers": headers}) as response:
                    assert status == response.status
                    request_id = response.headers["x-request-id"]
            assert own in (None, request_id)
            (line,) = [each for each in logs if each["event"] in ("rejected", "call")]
            assert (request_id, "127.0.0.1", "counter/1", "warning") == (
                line["request_id"],
                line["client"],
                line["agent"],
                line["log_level"],
            )
            assert line.get("limit") or line.get("rule") or line["event"] == "call"


def test_metrics_add_up_both_workers(tmp_path: Any) -> None:
    """No call or rejection is lost or counted twice, whichever worker served it."""
    with two_workers(tmp_path) as gateway:
        statuses: Counter[int] = Counter()
        for _ in range(8):
            connection = connect(gateway)
            statuses.update(ask_worker(connection) for _ in range(25))
            statuses[ask_worker(connection, body="{")] += 1
            connection.close()
        assert Counter({200: 200, 400: 8}) == statuses
        page = metrics(gateway)
        assert {("ok",): 200} == page_samples(page, "gateway_requests_total", "code")
        rejected = page_samples(page, "gateway_refused_requests_total", "protocol", "code")
        assert {("oip.http", "invalid_argument"): 8} == rejected
        assert {("simple",): 200} == page_samples(
            page, "gateway_overhead_duration_seconds_count", "model"
        )
        eventually(lambda: not page_samples(metrics(gateway), "gateway_connections"))


async def test_passthrough_requests_are_counted_and_logged() -> None:
    """Passthrough requests have log lines, ids and counts, also when they are rejected."""
    async with running(HEAD + MODELS) as back, aiohttp.ClientSession() as session:
        listener = 'listeners: [{http: "127.0.0.1:0", passthrough: far}]'
        head = HEAD.replace(HEAD.splitlines()[2], listener)
        upstream = f'upstreams: {{far: {{url: "oip+http://{back.addresses["main.http"]}"}}}}\n'
        async with running(head + upstream) as front:
            with capture_logs() as logs:
                seen = [
                    await post(session, front, "/nowhere"),  # refused here
                    *[
                        await fetch(session, front, path)
                        for path in ("/missing?token=hidden", "/metrics")
                    ],
                ]
            counted = samples(front, "gateway_requests_total", "protocol", "code", "target")
            sizes = samples(front, "gateway_sent_bytes_total", "protocol")
    assert [405, 404, 404] == [status for status, _ in seen]
    lines = [line for line in logs if line.get("protocol") == "passthrough"]
    assert [request_id for _, request_id in seen] == [line["request_id"] for line in lines]
    assert {("127.0.0.1", "warning")} == {(line["client"], line["log_level"]) for line in lines}
    assert ["/nowhere", "/missing", "/metrics"] == [line["path"] for line in lines]
    assert "hidden" not in str(lines)
    expected = {"invalid_argument": 1, "not_found": 2}
    assert {("passthrough", code, "far"): count for code, count in expected.items()} == {
        key: count for key, count in counted.items() if key[0] == "passthrough"
    }
    assert sizes["passthrough",] > 0


async def fetch(session: aiohttp.ClientSession, gateway: Gateway, path: str) -> Any:
    """GET from the gateway, and return the status and the request id."""
    async with session.get(f"http://{gateway.addresses['main.http']}{path}") as response:
        await response.read()
        return response.status, response.headers.get("x-request-id")


MANY = """
version: 1
workers: {workers}
listeners: [{{http: "127.0.0.1:0", grpc: "127.0.0.1:0"}}]
admin: {{address: "127.0.0.1:0", metrics: null}}
lifecycle: {{pre_stop: 0s, drain: 5s}}
policies: {{retry: {{attempts: 2, on: [unsent]}}}}
upstreams:
  dead: {{url: "oip+http://127.0.0.1:1", options: {{dialect: triton}}}}
routes:
  - {{match: {{model: simple}}, targets: [{{model: simple}}]}}
  - {{match: {{model: fail}}, targets: [{{model: fail}}]}}
  - {{name: gone, match: {{model: gone}}, targets: [{{upstream: dead}}]}}
"""
OUTCOMES = {
    "simple": "ok",
    "fail": "invalid_argument",
    "gone": "unavailable",
    "nobody": "not_found",
}


EACH = 50  # calls of a connection


async def ask_often(url: str, model: str, times: int) -> int:
    """Call a model over several connections, and return how many calls replied."""
    replies = 0
    for _ in range(times // EACH):
        connected = client(parse_url(url))
        service = Complete(connected.service, connected.needs)
        tensors = tuple(array_tensor(name, array) for name, array in INPUTS.items())
        for _ in range(EACH):
            try:
                await service(
                    InferRequest(
                        model=ModelRef(model), inputs=tensors, context=Context(needs=WHOLE)
                    )
                )
            except GatewayError:
                continue
            replies += 1
        await connected.close()
    return replies


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("workers", [1, 4])
async def test_ten_thousand_calls_are_counted_exactly(workers: int, tmp_path: Path) -> None:
    """All outcomes, protocols, retries and rejections are counted, whichever worker had them."""
    path = tmp_path / "many.yaml"
    path.write_text(MANY.format(workers=workers) + MODELS)
    with serving(str(path), patience_s=PATIENCE_S) as gateway:
        ways = urls(gateway, "simple")
        times = EACH * (9100 // (EACH * len(ways)) + 1)
        call_counts = {("simple", name): times for name in ways}
        for model, times in (("fail", 250), ("gone", 50), ("nobody", 50)):
            call_counts |= {(model, f"oip.{carrier}"): times for carrier in ("http", "grpc")}
        replies = await asyncio.gather(
            *(
                ask_often(urls(gateway, model)[protocol], model, times)
                for (model, protocol), times in call_counts.items()
            )
        )
        rejected: Counter[int] = Counter()
        for _ in range(20):
            with closing(connect(gateway)) as connection:
                rejected.update(ask_worker(connection, body="{") for _ in range(10))
        page = metrics(gateway)
    assert 10_000 <= sum(call_counts.values()) + rejected[400]
    assert sum(times for (model, _), times in call_counts.items() if model == "simple") == sum(
        replies
    )
    expected = {(name, OUTCOMES[model]): 0.0 for model, name in call_counts}
    for (model, name), times in call_counts.items():
        expected[name, OUTCOMES[model]] += times
    assert expected == page_samples(page, "gateway_requests_total", "protocol", "code")
    refused = page_samples(page, "gateway_refused_requests_total", "protocol", "code")
    assert {("oip.http", "invalid_argument"): 200} == refused
    attempts = page_samples(page, "gateway_upstream_attempts_total", "upstream", "code")
    retries = page_samples(page, "gateway_retries_total", "route")["gone",]
    assert {("dead", "unavailable"): 100 + retries} == attempts
    assert retries > 0
    total = page_samples(page, "gateway_request_duration_seconds_sum")[()]
    parts = [
        sum(page_samples(page, f"gateway_{name}_duration_seconds_sum", "model").values())
        for name in ("upstream", "queue", "overhead")
    ]
    assert sum(parts) == pytest.approx(total, rel=0.05)


CANARY = """
routes:
  - match: {{model: digits}}
    targets:
      - {{upstream: stable, model: stable, weight: 90}}
      - {{upstream: canary, model: canary, weight: 10}}
upstreams:
  stable: {{url: "oip+grpc://{grpc}"}}
  canary: {{url: "oip+http://{http}"}}
"""
VERSIONS = """
models:
  stable: {backend: python, options: {callable: "tests.integration.canary_models:stable"}}
  canary: {backend: python, options: {callable: "tests.integration.canary_models:Canary"}}
"""


async def test_metrics_show_share_errors_and_latency_of_a_canary() -> None:
    """Share, errors and latency of the canary are on the page next to the stable target's."""
    async with running(HEAD + VERSIONS) as back, aiohttp.ClientSession() as session:
        config = CANARY.format(grpc=back.addresses["main.grpc"], http=back.addresses["main.http"])
        async with running(HEAD + config) as front:
            for _ in range(20):
                path = "/v2/models/digits/infer"
                await asyncio.gather(*(post(session, front, path, json=BODY) for _ in range(20)))
            calls = samples(front, "gateway_requests_total", "target", "code")
            seconds = samples(front, "gateway_upstream_attempt_seconds_total", "upstream")
            attempts = samples(front, "gateway_upstream_attempts_total", "upstream")
            duration = "gateway_request_duration_seconds"
            took = samples(front, f"{duration}_sum", "target")
            counts = samples(front, f"{duration}_count", "target")
    assert {
        ("stable/stable", "ok"): 360,
        ("canary/canary", "ok"): 38,
        ("canary/canary", "upstream"): 2,
    } == calls
    assert {("stable",): 360, ("canary",): 40} == attempts
    means = {name: seconds[name] / attempts[name] for name in attempts}
    assert means["canary",] >= 0.03
    assert means["stable",] >= 0.01
    assert {("stable/stable",): 360, ("canary/canary",): 40} == counts
    assert took["canary/canary",] / counts["canary/canary",] >= 0.03
