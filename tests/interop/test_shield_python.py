"""Requests that hurt MLServer and KServe, sent directly and then through the gateway."""

from __future__ import annotations

import contextlib
import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cli_kit import Running
from tests.integration.workers_kit import eventually
from tests.interop.attacks import (
    INNOCENT,
    IS_HURT_FIRST,
    MOST_WAIT_S,
    Send,
    addresses,
    await_ready,
    by_grpc,
    infer_request,
    json_body,
    row,
    worst_wait,
)
from tests.interop.gateways import CARRIERS, gateway_before, gateways_before, serving
from tests.interop.sacrifice import (
    BLOCKED_S,
    Innocent,
    Sacrifice,
    bystander,
    post,
)
from tests.interop.servers.kserve import start as kserve
from tests.interop.servers.mlserver import start as mlserver

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]


def _status(gateway: Running) -> dict[str, Any]:
    """Return the status on the admin port."""
    page = urllib.request.urlopen(f"http://{gateway.addresses['admin']}/status").read()
    found: dict[str, Any] = json.loads(page)
    return found


@pytest.fixture(scope="module")
def mlserver_sacrifice(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sacrifice]:
    """Run an MLServer that may be hurt."""
    folder = tmp_path_factory.mktemp("mlserver-sacrifice")
    server = Sacrifice("mlserver", mlserver.prepare_sacrificial, folder, INNOCENT)
    yield server
    server.close()


@row("wide_text")
def test_wide_text_is_rejected(mlserver_sacrifice: Sacrifice) -> None:
    """Directly one long text among many uses a GiB of MLServer; the gateway rejects it."""
    mlserver_sacrifice.revive()
    texts = ["a"] * 999 + ["b" * 400_000]
    tensor = {"name": "X", "datatype": "BYTES", "shape": [1000], "data": texts}
    body = json.dumps({"inputs": [tensor]}).encode()
    path = "/v2/models/count_text/infer"
    if IS_HURT_FIRST:
        before = mlserver_sacrifice.peak_bytes()
        post(mlserver_sacrifice.server.http_address, path, body, timeout_s=60)
        assert mlserver_sacrifice.peak_bytes() - before > 500 << 20
        mlserver_sacrifice.restart()
    server = mlserver_sacrifice.server
    before = mlserver_sacrifice.peak_bytes()
    with gateway_before(server, "http") as gateway:
        address = gateway.addresses["main.http"]
        statuses: list[int] = []
        worst_s = worst_wait(
            mlserver_sacrifice,
            address,
            lambda: statuses.append(post(address, path, body)[0]),
            gateway.process.pid,
            server.process.pid,
        )
        assert [413] == statuses
        assert worst_s < MOST_WAIT_S
    assert mlserver_sacrifice.peak_bytes() - before < 50 << 20
    assert not mlserver_sacrifice.is_hurt()


@row("unknown_names")
@pytest.mark.parametrize("carrier", CARRIERS)
def test_unknown_names_do_not_reach_the_metrics(
    mlserver_sacrifice: Sacrifice, carrier: str
) -> None:
    """Directly, each unknown model name stays in MLServer's metrics; the gateway forwards none."""
    mlserver_sacrifice.revive()
    server = mlserver_sacrifice.server
    body = json_body("FP32", [1, 1], [1])

    def series(name: str) -> int:
        page = urllib.request.urlopen(f"http://{mlserver_sacrifice.metrics_address}/metrics").read()
        return str(page, "utf-8").count(f'model="{name}"')

    assert post(server.http_address, f"/v2/models/direct-{carrier}/infer", body)[0] == 404
    assert series(f"direct-{carrier}") > 3
    with gateway_before(server, carrier) as gateway:
        http_address, grpc_address = addresses(gateway)
        for number in range(3):
            name = f"invented-{carrier}-{number}"
            assert post(http_address, f"/v2/models/{name}/infer", body)[0] == 404
            request = infer_request(name, "FP32", (1, 1), bytes(4))
            assert by_grpc(request)("", grpc_address) == "NOT_FOUND"
            assert series(name) == 0
        INNOCENT.by_http(http_address)
        INNOCENT.by_grpc(grpc_address)
    assert not mlserver_sacrifice.is_hurt()


@row("numbers_as_json")
def test_many_json_numbers_are_rejected(mlserver_sacrifice: Sacrifice) -> None:
    """Directly 15,000,000 numbers block MLServer; the gateway rejects them."""
    mlserver_sacrifice.revive()
    path = "/v2/models/sum_and_empty/infer"
    count = 15_000_000
    tensor = {"name": "X", "datatype": "FP32", "shape": [count]}
    if IS_HURT_FIRST:
        numbers = b",".join([b"0.12345678"] * count)
        direct = json.dumps({"inputs": [tensor]}).encode()[:-3] + b',"data":[' + numbers + b"]}]}"
        there = mlserver_sacrifice.server.http_address
        send = partial(post, there, path, direct, timeout_s=60)
        assert worst_wait(mlserver_sacrifice, there, send) > BLOCKED_S
        mlserver_sacrifice.restart()
    size = {"binary_data_size": 4 * count}
    head = json.dumps({"inputs": [{**tensor, "parameters": size}]}).encode()
    length = {"Inference-Header-Content-Length": str(len(head))}
    with gateway_before(mlserver_sacrifice.server, "http") as gateway:
        address = gateway.addresses["main.http"]
        statuses: list[int] = []
        worst_s = worst_wait(
            mlserver_sacrifice,
            address,
            lambda: statuses.append(
                post(address, path, head + bytes(4 * count), headers=length)[0]
            ),
            gateway.process.pid,
            mlserver_sacrifice.server.process.pid,
        )
        assert [413] == statuses
        assert worst_s < MOST_WAIT_S
    assert not mlserver_sacrifice.is_hurt()


@row("left_stream")
def test_an_abandoned_stream_is_cancelled_over_grpc(mlserver_sacrifice: Sacrifice) -> None:
    """Directly, an abandoned stream runs to its end; over gRPC the client's leaving ends it."""
    mlserver_sacrifice.revive()
    count = 200_000
    tensor = {"name": "IN", "datatype": "INT32", "shape": [count], "data": [0] * count}
    body = json.dumps({"inputs": [tensor]}).encode()
    path = "/v2/models/repeat_stream/infer_stream"

    def leave(address: str) -> None:
        connection = http.client.HTTPConnection(address, timeout=20)
        with contextlib.closing(connection):
            connection.request("POST", path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            assert answer.status == 200
            assert answer.readline().startswith(b"data:")

    def leave_and_wait(address: str) -> None:
        leave(address)
        INNOCENT.by_http(address, timeout_s=60)

    if IS_HURT_FIRST:
        there = mlserver_sacrifice.server.http_address
        send = partial(leave_and_wait, there)
        assert worst_wait(mlserver_sacrifice, there, send) > BLOCKED_S
        mlserver_sacrifice.restart()
    server = mlserver_sacrifice.server
    with gateway_before(server, "http") as gateway:
        await_ready(gateway)
        (upstream,) = _status(gateway)["upstreams"]
        lines = [line for each in upstream["endpoints"] for line in each["weaknesses"]]
        assert any("infer_stream" in line and "oip+grpc" in line for line in lines)
    with gateway_before(server, "grpc") as gateway:
        await_ready(gateway)
        address = gateway.addresses["main.http"]
        send = partial(leave_and_wait, address)
        processes = gateway.process.pid, server.process.pid
        assert worst_wait(mlserver_sacrifice, address, send, *processes) < MOST_WAIT_S
    assert not mlserver_sacrifice.is_hurt()


@pytest.fixture(scope="module")
def kserve_sacrifice(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sacrifice]:
    """Run a KServe that may be hurt."""
    server = Sacrifice(
        "kserve", kserve.prepare, tmp_path_factory.mktemp("kserve-sacrifice"), KSERVE_INNOCENT
    )
    yield server
    server.close()


@pytest.fixture(scope="module")
def kserve_gateways(kserve_sacrifice: Sacrifice) -> Iterator[Mapping[str, Running]]:
    """Run a gateway with default settings for each carrier to the server."""
    with gateways_before(kserve_sacrifice.server) as found:
        yield found


def _check_blocking(
    sacrifice: Sacrifice, gateways: Mapping[str, Running], send: Send, answers: set[str]
) -> None:
    """Check that a request blocks others directly, and none through a gateway."""
    sacrifice.revive()
    if IS_HURT_FIRST:
        server = sacrifice.server
        with bystander(_infer_patiently, server.http_address) as seen:
            seen.await_requests()
            send(server.http_address, server.grpc_address)
        assert seen.worst_s > BLOCKED_S, "this server is not hurt: check its version"
        sacrifice.revive()
    for gateway in gateways.values():
        await_ready(gateway, sacrifice.innocent)
        http_address, grpc_address = addresses(gateway)
        processes = gateway.process.pid, sacrifice.server.process.pid
        with bystander(sacrifice.innocent.by_http, http_address, *processes) as seen:
            seen.await_requests()
            assert send(http_address, grpc_address) in answers
        assert not seen.failures
        assert seen.worst_s < MOST_WAIT_S
        sacrifice.innocent.by_grpc(grpc_address)
    assert not sacrifice.is_hurt()


def _infer_patiently(address: str) -> None:
    """Call KServe as a client that waits as long as necessary."""
    KSERVE_INNOCENT.by_http(address, timeout_s=60)


KSERVE_INNOCENT = Innocent("identity_int32", "INT32", (4,))


def _binary(path: str, datatype: str, count: int, data: bytes) -> Send:
    """Return a function that POSTs one binary input, INPUT0."""
    parameters = {"binary_data_size": len(data)}
    tensor = {"name": "INPUT0", "datatype": datatype, "shape": [count], "parameters": parameters}
    head = json.dumps({"inputs": [tensor]}).encode()

    def send(http_address: str, _grpc_address: str) -> str:
        length = {"Inference-Header-Content-Length": str(len(head))}
        return str(post(http_address, path, head + data, 60, length)[0])

    return send


@row("many_numbers")
def test_many_numbers_are_rejected(
    kserve_sacrifice: Sacrifice, kserve_gateways: Mapping[str, Running]
) -> None:
    """Directly 2,200,000 numbers block KServe; the gateway rejects them for either carrier."""
    count = 2_200_000
    send = _binary("/v2/models/identity_int32/infer", "INT32", count, bytes(4 * count))
    _check_blocking(kserve_sacrifice, kserve_gateways, send, {"413"})


@row("many_numbers")
def test_many_texts_are_rejected_over_http(
    kserve_sacrifice: Sacrifice, kserve_gateways: Mapping[str, Running]
) -> None:
    """Directly 1,200,000 texts block KServe; the gateway rejects them over HTTP."""
    count = 1_200_000
    send = _binary("/v2/models/identity_bytes/infer", "BYTES", count, bytes(4 * count))
    _check_blocking(kserve_sacrifice, {"http": kserve_gateways["http"]}, send, {"413"})


@row("many_inputs")
def test_many_inputs_are_rejected(
    kserve_sacrifice: Sacrifice, kserve_gateways: Mapping[str, Running]
) -> None:
    """Directly 40,000 empty inputs block KServe; the gateway rejects them."""
    body = b'{"inputs":[' + b",".join([b"{}"] * 40_000) + b"]}"

    def send(http_address: str, _grpc_address: str) -> str:
        path = "/v2/models/identity_int32/infer"
        return str(post(http_address, path, body, 60, {"Content-Type": "application/json"})[0])

    _check_blocking(kserve_sacrifice, kserve_gateways, send, {"413"})


def test_many_rows_are_rejected(kserve_sacrifice: Sacrifice, tmp_path: Path) -> None:
    """KServe's V1 protocol passes on listed paths only, with a limited number of rows."""
    rows = [[float(number)] * 16 for number in range(20_000)]
    kserve_sacrifice.revive()
    server = kserve_sacrifice.server

    def predict(address: str, count: int) -> str:
        body = json.dumps({"instances": rows[:count]}).encode()
        headers = {"Content-Type": "application/json"}
        return str(post(address, "/v1/models/rows:predict", body, 60, headers)[0])

    assert predict(server.http_address, 20_000) == "200"
    upstream = f"oip+http://{server.http_address}"
    file = tmp_path / "rows.yaml"
    file.write_text(
        f"""
version: 1
listeners: [{{http: "127.0.0.1:0", passthrough: {{upstream: kserve, post: ["/v1/models/*"]}}}}]
admin: {{address: null, metrics: null}}
upstreams: {{kserve: {{url: "{upstream}"}}}}
lifecycle: {{pre_stop: 0s}}
"""
    )
    with (
        gateway_before(server, "http") as closed,
        serving(str(file)) as opened_gateway,
    ):
        await_ready(closed, KSERVE_INNOCENT)
        address = closed.addresses["main.http"]
        assert predict(address, 10) == "200"
        assert predict(address, 20_000) == "413"
        with pytest.raises(urllib.error.HTTPError, match=r"404|501"):
            urllib.request.urlopen(f"http://{address}/openapi.json")
        address = opened_gateway.addresses["main.http"]
        await_ready(opened_gateway, KSERVE_INNOCENT)
        processes = opened_gateway.process.pid, server.process.pid
        with bystander(KSERVE_INNOCENT.by_http, address, *processes) as seen:
            seen.await_requests()
            assert predict(address, 20_000) == "413"
            assert predict(address, 1000) == "200"
        assert not seen.failures
        assert seen.worst_s < MOST_WAIT_S
    assert not kserve_sacrifice.is_hurt()


@pytest.mark.parametrize("carrier", CARRIERS)
def test_text_for_a_numeric_input_is_rejected(
    kserve_sacrifice: Sacrifice, kserve_gateways: Mapping[str, Running], carrier: str
) -> None:
    """The error of the gateway names the required datatype."""
    kserve_sacrifice.revive()
    gateway = kserve_gateways[carrier]
    await_ready(gateway, KSERVE_INNOCENT)
    body = json_body("BYTES", [1], ["a"])
    status, text = post(
        gateway.addresses["main.http"], "/v2/models/slow/infer", body.replace(b"INPUT0", b"MS")
    )
    assert (400, True) == (status, b"needs INT32" in text), text


@pytest.mark.parametrize("carrier", CARRIERS)
def test_brief_errors_omit_the_models_text(
    mlserver_sacrifice: Sacrifice, carrier: str, tmp_path: Path
) -> None:
    """Errors of models name a Python class; with `errors: brief` only the log has it."""
    mlserver_sacrifice.revive()
    server = mlserver_sacrifice.server
    path = "/v2/models/sum_and_empty/infer"
    body = json_body("BYTES", [1], ["a"]).replace(b"INPUT0", b"X")
    assert b"ValueError" in post(server.http_address, path, body)[1]
    address = server.address(carrier)
    file = tmp_path / "brief.yaml"
    file.write_text(
        f"""
version: 1
listeners: [{{http: "127.0.0.1:0"}}]
admin: {{address: null, metrics: null}}
upstreams: {{mlserver: {{url: "oip+{carrier}://{address}", errors: brief}}}}
lifecycle: {{pre_stop: 0s}}
"""
    )
    with serving(str(file)) as gateway:
        await_ready(gateway)
        status, text = post(gateway.addresses["main.http"], path, body)
        assert status >= 400
        assert b"Error" not in text.replace(b'"error"', b""), text
        eventually(lambda: any("error text withheld" in line for line in list(gateway.log)))
