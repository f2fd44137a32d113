"""Reloads of a real gateway process: under load, with errors, by signal and by the admin port."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import signal
from pathlib import Path

import pytest

from gateway.app import connect
from gateway.ir.errors import GatewayError
from gateway.ir.tensors.tensor import as_numpy
from gateway.policies.complete.policy import Complete
from gateway.settings.units import parse_url
from tests.integration.cli_kit import gateway as command
from tests.integration.cli_kit import get
from tests.integration.http_kit import eventually
from tests.integration.reload_kit import (
    HEAD,
    PATIENCE_S,
    Load,
    Reloaded,
    infer_request,
    reloadable,
    reloadable_beside,
    servers,
    upstream_routes,
)
from tests.unit.backends.onnx_models import ELEMENT_TYPES, model

# Three processes and the commands take their time where others are busy too.
pytestmark = pytest.mark.timeout(120)

# Calls of a long run, such as RESILIENCE_CALLS=300000; a machine answers at least 100 in a second.
CALLS = int(os.environ.get("RESILIENCE_CALLS", "0"))

SCHEMES = ("oip+http", "oip+grpc", "grps+brpc")
MODEL = 'models: {%s: {backend: python, options: {callable: "gateway.backends.examples:%s"}}}\n'


def local(model: str, callable_: str = "simple") -> str:
    """Return a configuration with one model in the process."""
    return HEAD.format(workers=1) + MODEL % (model, callable_)


@pytest.mark.parametrize("workers", [1, 2])
async def test_calls_and_streams_survive_reloads(tmp_path: Path, workers: int) -> None:
    """Each call reaches a server in force, and a removed server gets none."""
    async with servers(3) as addresses:
        head = HEAD.format(workers=workers)
        text = head + upstream_routes(addresses, 1)
        async with reloadable_beside(tmp_path / "gateway.yaml", text) as gateway:
            async with Load(gateway, SCHEMES) as load:
                for number in (2, 3, 1, 2, 1):
                    await load.send_to(number, head + upstream_routes(addresses, number))
            assert not load.wrong
            assert load.answered >= 100
            status, page = gateway.admin("GET", "/metrics")
            assert status == 200
            assert 'gateway_config_reloads_total{outcome="applied"} 5.0' in page
            await eventually(lambda: probed(gateway) == {"server-1"})
            assert gateway.running.stop() == 0


@pytest.mark.slow
@pytest.mark.timeout(300 + CALLS // 100)
@pytest.mark.flaky(reruns=0)  # a call that is lost once is lost
@pytest.mark.parametrize("workers", [1, 2, 4])
async def test_twenty_reloads_lose_no_call(tmp_path: Path, workers: int) -> None:
    """No call is lost, and removed upstreams are no longer probed."""
    async with servers(3) as addresses:
        head = HEAD.format(workers=workers)
        text = head + upstream_routes(addresses, 1)
        async with reloadable_beside(tmp_path / "gateway.yaml", text) as gateway:
            async with Load(gateway, SCHEMES, clients=4) as load:
                for turn in range(1, 21):
                    number = turn % 3 + 1
                    await load.send_to(number, head + upstream_routes(addresses, number))
                    await load.reaches(CALLS * turn // 20, patience_s=300 + CALLS // 100)
            print(f"{load.answered} calls during 20 reloads")
            assert not load.wrong
            assert load.answered >= max(400, CALLS)
            await eventually(lambda: probed(gateway) == {"server-3"})
            assert gateway.running.stop() == 0


TWO = """
upstreams:
  server-1: {{url: "oip+grpc://{0}"}}
  server-2: {{url: "oip+grpc://{1}"}}
routes:
  - {{name: sum, match: {{model: sum}}, targets: [{{upstream: server-{number}}}]}}
  - {{name: other, targets: [{{upstream: server-2}}]}}
"""


@pytest.mark.parametrize("keeps", [True, False])
async def test_open_sequences_keep_their_server(tmp_path: Path, *, keeps: bool) -> None:
    """A sequence keeps its server after its route or upstream is removed; a new one moves."""
    async with servers(2) as addresses:
        head = HEAD.format(workers=1)
        first = head + TWO.format(addresses[1], addresses[2], number=1)
        second = head + TWO.format(addresses[1], addresses[2], number=2)
        if not keeps:
            second = head + upstream_routes(addresses, 2)
        async with reloadable_beside(tmp_path / "gateway.yaml", first) as gateway:
            assert await send(gateway, 7, 1, start=True) == 1
            assert await send(gateway, 7, 2) == 3
            status, document = await gateway.reload(second)
            assert status == 200, document
            assert await send(gateway, 8, 100, start=True) == 100
            assert await send(gateway, 7, 3) == 6
            assert await send(gateway, 8, 1) == 101
            assert await send(gateway, 7, 4, end=True) == 10
            if not keeps:
                await eventually(lambda: probed(gateway) == {"server-2"})
            assert await send(gateway, 8, 1, end=True) == 102
            assert gateway.running.stop() == 0


async def send(
    gateway: Reloaded, sequence: int, value: int, *, start: bool = False, end: bool = False
) -> int:
    """Send a request of a sequence and return the sum so far."""
    tensor = {"name": "INPUT", "datatype": "INT32", "shape": [1, 1], "data": [value]}
    parameters = {"sequence_id": sequence, "sequence_start": start, "sequence_end": end}
    body = {"inputs": [tensor], "parameters": parameters}
    url = gateway.running.url("/v2/models/sum/infer")
    status, document = await asyncio.to_thread(get, url, body)
    assert status == 200, document
    found: int = document["outputs"][0]["data"][0]
    return found


INSTANCES = """
models:
  kept: {backend: python, options: {callable: "tests.integration.reload_kit:Instance"}}
  changed: {backend: python, options: {callable: "tests.integration.reload_kit:Instance"}}
"""


@pytest.mark.parametrize("workers", [1, 2])
async def test_unchanged_model_is_not_loaded_again(tmp_path: Path, workers: int) -> None:
    """The instance of the start still serves after the reload."""
    text = HEAD.format(workers=workers) + INSTANCES
    with reloadable(tmp_path / "gateway.yaml", text) as gateway:
        unchanged, changed = instances(gateway, "kept"), instances(gateway, "changed")
        assert len(unchanged) == workers
        options = "changed: {batching: {}, backend: python, options: {instances: 1, "
        text = text.replace("changed: {backend: python, options: {", options)
        status, document = await gateway.reload(text + "policies: {timeout: 5s}")
        assert (status, document["changes"]["replaced"]) == (
            200,
            ["model changed", "route changed", "route kept"],
        )
        assert instances(gateway, "kept") == unchanged
        assert not instances(gateway, "changed") & changed


ONNX = """
models:
  kept: {backend: onnx, path: kept.onnx, options: {device: cpu}}
  trained: {backend: onnx, path: trained, options: {device: cpu}}
"""


@pytest.mark.parametrize("workers", [1, 2])
async def test_model_whose_files_changed_is_loaded_again(tmp_path: Path, workers: int) -> None:
    """A reload said `applied`, and the model of the old file served."""
    pytest.importorskip("onnxruntime")
    (tmp_path / "trained" / "1").mkdir(parents=True)
    trained = tmp_path / "trained" / "1" / "model.onnx"
    for path in (tmp_path / "kept.onnx", trained):
        path.write_bytes(one_operator("Abs"))
    text = HEAD.format(workers=workers) + ONNX
    with reloadable(tmp_path / "gateway.yaml", text) as gateway:
        assert {2.0} == results(gateway, "trained")
        trained.with_suffix(".new").write_bytes(one_operator("Neg"))
        trained.with_suffix(".new").rename(trained)
        status, document = await gateway.reload(text)
        replaced = ["model trained", "route trained"]
        assert (200, replaced) == (status, document["changes"]["replaced"])
        assert {-2.0} == results(gateway, "trained")
        assert {2.0} == results(gateway, "kept")
        trained.write_bytes(b"half of a mod")
        status, document = await gateway.reload(text)
        assert (422, True) == (status, str(trained) in document["error"])
        assert {-2.0} == results(gateway, "trained")


def one_operator(operator: str) -> bytes:
    """Return a model with one operator."""
    kind = ELEMENT_TYPES["FP32"]
    return model([(operator, ["X"], ["Y"])], [("X", kind, ["n"])], [("Y", kind, ["n"])])


def results(gateway: Reloaded, name: str) -> set[float]:
    """Return the outputs of a model for 2, of all workers."""
    tensor = {"name": "X", "datatype": "FP32", "shape": [1], "data": [2]}
    url = gateway.running.url(f"/v2/models/{name}/infer")
    replies = [get(url, {"inputs": [tensor]})[1] for _ in range(20)]
    return {reply["outputs"][0]["data"][0] for reply in replies}


def instances(gateway: Reloaded, model: str) -> set[int]:
    """Return the numbers of all instances of a model, one for each worker."""
    tensor = {"name": "IN", "datatype": "INT32", "shape": [1], "data": [0]}
    url = gateway.running.url(f"/v2/models/{model}/infer")
    # The kernel spreads connections over the workers.
    replies = [get(url, {"inputs": [tensor]})[1] for _ in range(40)]
    return {reply["outputs"][0]["data"][0] for reply in replies}


@pytest.mark.parametrize("workers", [1, 2])
async def test_drained_endpoint_gets_no_calls_until_it_is_enabled(
    tmp_path: Path, workers: int
) -> None:
    """A reload keeps the drained state, and the configuration page lists it."""
    async with servers(2) as addresses:
        urls = ", ".join(f'"oip+grpc://{address}"' for address in addresses.values())
        text = HEAD.format(workers=workers) + f"upstreams: {{pair: {{urls: [{urls}]}}}}\n"
        async with reloadable_beside(tmp_path / "gateway.yaml", text) as gateway:
            await both_reply(gateway)
            await run_command(gateway, "upstream", "drain", f"pair/{addresses[1]}")
            assert await numbers(gateway) == {2}
            status, document = await gateway.reload(text + "policies: {timeout: 5s}")
            assert status == 200, document
            assert await numbers(gateway) == {2}
            changes = gateway.admin("GET", "/config")[1]["changes"]
            assert changes == {"drained": [f"pair/{addresses[1]}"], "weights": {}}
            await run_command(gateway, "upstream", "enable", "pair")
            await both_reply(gateway)
            await run_command(gateway, "upstream", "drain", "pair")
            with pytest.raises(GatewayError, match="all endpoints of upstream 'pair' are drained"):
                await numbers(gateway)


async def test_weights_change_until_they_are_reset(tmp_path: Path) -> None:
    """A reload keeps the weights of the command; after a reset those of the file apply."""
    async with servers(2) as addresses:
        text = HEAD.format(workers=1) + (
            f'upstreams: {{a: {{url: "oip+grpc://{addresses[1]}"}}, '
            f'b: {{url: "oip+grpc://{addresses[2]}"}}}}\n'
            "routes: [{name: all, targets: [{upstream: a, weight: 1}, {upstream: b, weight: 0}]}]\n"
        )
        async with reloadable_beside(tmp_path / "gateway.yaml", text) as gateway:
            assert await numbers(gateway) == {1}
            await run_command(gateway, "route", "weights", "all", "a=0", "b=3")
            assert await numbers(gateway) == {2}
            status, document = await gateway.reload(text + "policies: {timeout: 5s}")
            assert status == 200, document
            assert await numbers(gateway) == {2}
            weights = {"all": {"a": {"now": 0, "file": 1}, "b": {"now": 3, "file": 0}}}
            assert {"weights": weights} == document["runtime"]["changes"]
            found = gateway.admin("GET", "/status")[1]
            assert document["runtime"] == found["runtime"]
            assert {"a": 0, "b": 3} == found["routes"][0]["weights"]
            await run_command(gateway, "route", "reset", "all")
            assert await numbers(gateway) == {1}
            assert {} == gateway.admin("GET", "/status")[1]["runtime"]["changes"]


async def numbers(gateway: Reloaded) -> set[int]:
    """Return the servers that reply to some calls."""
    found = set()
    for _ in range(8):  # each over a connection of its own, so that every worker gets some
        connected = connect(parse_url(gateway.url("oip+http")))
        try:
            service = Complete(connected.service, connected.needs)
            for _ in range(4):
                reply = await service(infer_request("add", 0))
                found.add(int(as_numpy(reply.outputs[0])[0]))
        finally:
            await connected.close()
    return found


async def both_reply(gateway: Reloaded) -> None:
    """Wait until both servers reply: a probe may have timed out on a busy machine."""
    async with asyncio.timeout(PATIENCE_S):
        while await numbers(gateway) != {1, 2}:
            continue


async def run_command(gateway: Reloaded, *arguments: str) -> None:
    """Run a command of the gateway for its admin port."""
    admin = gateway.running.addresses["admin"]
    done = await asyncio.to_thread(command, *arguments, "--admin", admin)
    assert (done.returncode, done.stderr) == (0, ""), done


def test_invalid_file_keeps_the_old_configuration(tmp_path: Path) -> None:
    """The response has the lines of `gateway validate`, and the old model is served."""
    path = tmp_path / "gateway.yaml"
    with reloadable(path, local("first")) as gateway:
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        path.write_text(local("second").replace("backend: python", "backend: pithon"))
        status, document = gateway.admin("POST", "/reload")
        assert (status, document["outcome"], document["sha256"]) == (422, "rejected", sha256)
        (problem,) = document["problems"]
        line, column = problem["line"], problem["column"]
        assert problem["path"] == "models.second.backend"
        expected = f"{path}:{line}:{column}: {problem['path']}: {problem['message']}"
        assert document["error"] == expected
        assert gateway.admin("GET", "/config")[1]["sha256"] == sha256
        (event,) = gateway.events("configuration not reloaded")
        assert event["error"] == expected
        page = gateway.admin("GET", "/metrics")[1]
        assert 'gateway_config_reloads_total{outcome="rejected"} 1.0' in page
        assert "v2/models/first" not in page
        assert served(gateway) == {"first"}


def test_failing_model_keeps_the_old_configuration(tmp_path: Path) -> None:
    """A valid file may still fail; the reason is in the response."""
    with reloadable(tmp_path / "gateway.yaml", local("first")) as gateway:
        gateway.path.write_text(local("second", "missing_function"))
        status, document = gateway.admin("POST", "/reload")
        assert (status, document["outcome"]) == (422, "failed")
        assert "missing_function" in document["error"]
        assert served(gateway) == {"first"}


@pytest.mark.parametrize("workers", [1, 2])
def test_changes_that_need_a_restart_are_rejected_by_line(tmp_path: Path, workers: int) -> None:
    """Every such key is named with its position, and nothing is applied."""
    path = tmp_path / "gateway.yaml"
    before = local("first").replace("workers: 1", f"workers: {workers}")
    with reloadable(path, before) as gateway:
        text = local("second").replace("workers: 1", "workers: 3")
        path.write_text(text.replace('http: "127.0.0.1:0"', 'http: "127.0.0.1:1"'))
        status, document = gateway.admin("POST", "/reload")
        found = [(each["line"], each["path"], each["message"]) for each in document["problems"]]
        message = "this change needs a restart"
        assert (422, [(3, "workers", message), (5, "listeners[0].http", message)]) == (
            status,
            found,
        )
        assert served(gateway) == {"first"}


async def test_sighup_reloads_and_never_ends_the_process(tmp_path: Path) -> None:
    """A signal applies the file; an invalid file changes nothing, and the process runs on."""
    with reloadable(tmp_path / "gateway.yaml", local("first")) as gateway:
        gateway.path.write_text(local("second"))
        gateway.running.process.send_signal(signal.SIGHUP)
        await eventually(lambda: gateway.events("configuration reloaded"))
        assert served(gateway) == {"second"}
        gateway.path.write_text("version: 9")
        for _ in range(20):
            gateway.running.process.send_signal(signal.SIGHUP)
        await eventually(lambda: gateway.events("configuration not reloaded"))
        assert served(gateway) == {"second"}
        assert gateway.running.stop() == 0


async def test_watched_file_is_reloaded_when_it_changes(tmp_path: Path) -> None:
    """Editors and Kubernetes replace the file; an invalid one changes nothing and is read once."""
    watch = "lifecycle: {reload: {watch: true, debounce: 10ms, signal: false}}\n"
    path = tmp_path / "gateway.yaml"
    first, second = (
        local(model).replace("lifecycle: {pre_stop: 0s, drain: 10s}\n", watch)
        for model in ("first", "second")
    )
    with reloadable(path, first) as gateway:
        other = tmp_path / "new.yaml"
        other.write_text(second)
        other.rename(path)
        await eventually(lambda: gateway.events("configuration reloaded"))
        assert served(gateway) == {"second"}
        path.write_text("version: 9")
        await eventually(lambda: gateway.events("configuration not reloaded"))
        gateway.running.process.send_signal(signal.SIGHUP)
        (tmp_path / "unrelated").write_text("")
        path.write_text(first)
        await eventually(lambda: len(gateway.events("configuration reloaded")) == 2)
        assert served(gateway) == {"first"}
        assert len(gateway.events("configuration not reloaded")) == 1


@pytest.mark.parametrize(
    ("method", "path", "headers", "expected"),
    [
        ("GET", "/reload", {}, 405),
        ("POST", "/config", {}, 405),
        ("POST", "/reload", {"Origin": "http://example.com"}, 403),
    ],
)
def test_only_a_post_without_origin_reloads(
    tmp_path: Path, method: str, path: str, headers: dict[str, str], expected: int
) -> None:
    """Other methods and requests of web pages are rejected."""
    with reloadable(tmp_path / "gateway.yaml", local("first")) as gateway:
        gateway.path.write_text(local("second"))
        assert gateway.admin(method, path, headers)[0] == expected
        assert served(gateway) == {"first"}


def test_configuration_page_hides_secrets(tmp_path: Path) -> None:
    """References are shown as written, and values of headers are hidden."""
    (tmp_path / "key").write_text("very secret")
    text = local("first") + (
        'upstreams: {a: {url: "oip+http://127.0.0.1:1", '
        'headers: {x-key: "${file:key}", x-other: hidden}}}\n'
    )
    with reloadable(tmp_path / "gateway.yaml", text) as gateway:
        status, document = gateway.admin("GET", "/config")
    assert status == 200
    assert document["config"]["upstreams"]["a"]["headers"] == {
        "x-key": "${file:key}",
        "x-other": "...",
    }
    assert document["sha256"] == hashlib.sha256(text.encode()).hexdigest()


def probed(gateway: Reloaded) -> set[str]:
    """Return the upstreams whose readiness is in the metrics."""
    page = gateway.admin("GET", "/metrics")[1]
    return set(re.findall(r'gateway_upstream_ready\{.*upstream="([^"]*)"\}', page))


def served(gateway: Reloaded) -> set[str]:
    """Return the models that the gateway serves."""
    return {
        name
        for name in ("first", "second")
        if get(gateway.running.url(f"/v2/models/{name}"))[0] == 200
    }
