"""Quotas over every carrier, and exact over worker processes."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import grpc
import pytest
from aiohttp import ClientSession
from grpc import aio

from gateway.app import Gateway
from gateway.ir.errors import GatewayError
from gateway.schema import open_inference_pb2 as oip
from gateway.schema import tensorrt_v1_pb2 as trtis
from tests.integration.asking_kit import ask, running
from tests.integration.cli_kit import gateway as command
from tests.integration.test_permissions import INPUTS, sent
from tests.integration.workers_kit import (
    BODY,
    connect,
    events,
    eventually,
    metrics,
    two_workers,
)
from tests.integration.workers_kit import ask as ask_once

CONFIG = """\
version: 1
listeners:
  - name: main
    http: 127.0.0.1:0
    grpc: 127.0.0.1:0
    streams:
      - {protocol: grps, address: "127.0.0.1:0"}
admin: {address: null, metrics: null}
lifecycle: {pre_stop: 0s}
models:
  simple: {backend: python, options: {callable: "gateway.backends.examples:simple"}}
quotas: QUOTAS
"""
DAY = "{gold-day: {limit: 3/day}}"
TENSOR = {"name": "INPUT0", "datatype": "INT32", "shape": [1, 16], "data": [1] * 16}
DOCUMENT = {"inputs": [TENSOR, {**TENSOR, "name": "INPUT1"}]}


def config(quotas: str = DAY) -> str:
    """Return a configuration with *quotas*."""
    return CONFIG.replace("QUOTAS", quotas)


async def codes(gateway: Gateway, name: str, count: int) -> Counter[str]:
    """Make inferences over one protocol and carrier; return how many ended in which way."""
    found: Counter[str] = Counter()
    for _ in range(count):
        try:
            await ask(all_urls_of(gateway)[name], "simple", INPUTS)
            found["ok"] += 1
        except GatewayError as error:
            found[error.code.value] += 1
    return found


def all_urls_of(gateway: Gateway) -> Mapping[str, str]:
    """Return a URL of each protocol and carrier."""
    gateway.addresses.setdefault("main.graphpipe.tcp", "")
    found = {**gateway.addresses}
    http, rpc = found["main.http"], found["main.grpc"]
    return {
        "oip.http": f"oip+http://{http}",
        "oip.grpc": f"oip+grpc://{rpc}",
        "trtis.http": f"trtis+http://{http}",
        "trtis.grpc": f"trtis+grpc://{rpc}",
        "graphpipe.http": f"graphpipe+http://{http}/graphpipe/simple",
        "grps.http": f"grps+http://{http}",
        "grps.grpc": f"grps+grpc://{rpc}",
        "grps.brpc": f"grps+brpc://{found['main.grps.brpc']}",
    }


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("oip.http", "overloaded"),
        ("oip.grpc", "overloaded"),
        ("trtis.http", "not_ready"),
        ("trtis.grpc", "overloaded"),
        ("graphpipe.http", "overloaded"),
        ("grps.http", "overloaded"),
        ("grps.grpc", "overloaded"),
        ("grps.brpc", "overloaded"),
    ],
)
async def test_a_quota_ends_the_call_on_every_carrier(name: str, code: str) -> None:
    """Three calls of a day are made; the others are refused."""
    async with running(config()) as gateway:
        assert Counter({"ok": 3, code: 2}) == await codes(gateway, name, 5)


async def test_http_headers_state_the_rest() -> None:
    """Policy, rest and wait are in the headers; a refusal has nothing left and `Retry-After`."""
    async with running(config()) as gateway, ClientSession() as client:
        url = f"http://{gateway.addresses['main.http']}/v2/models/simple/infer"
        for left in (2, 1, 0):
            status, headers, _ = await sent(client, "POST", url, DOCUMENT)
            assert status == 200
            assert headers["RateLimit-Policy"] == '"gold-day";q=3;w=86400'
            assert headers["RateLimit"].startswith(f'"gold-day";r={left};t=')
        status, headers, body = await sent(client, "POST", url, DOCUMENT)
        assert (429, {"error"}) == (status, set(json.loads(body)))
        assert 1 <= int(headers["Retry-After"]) <= 86400
        assert headers["RateLimit"].startswith('"gold-day";r=0;t=')
        url = f"http://{gateway.addresses['main.http']}/v2/health/live"
        status, headers, _ = await sent(client, "GET", url)
        assert status == 200
        assert "RateLimit" not in headers


async def test_paths_of_openai_have_its_names_too() -> None:
    """Its clients read `x-ratelimit-*`; those of other protocols get none of them."""
    text = config().replace(
        "quotas:",
        """  texts:
    backend: python
    options: {callable: "tests.integration.openai_models:embed_text"}
    signature:
      inputs: [{name: text, datatype: BYTES, shape: [-1]}]
      outputs: [{name: embedding, datatype: FP32, shape: [-1, 24]}]
quotas:""",
    )
    async with running(text) as gateway, ClientSession() as client:
        base = f"http://{gateway.addresses['main.http']}"
        request = {"model": "texts", "input": "one"}
        replies = [await sent(client, "POST", f"{base}/v1/embeddings", request) for _ in range(4)]
        for (found, headers, _), left, status in zip(
            replies, "2100", (200, 200, 200, 429), strict=True
        ):
            assert (status, "3", left) == (
                found,
                headers["x-ratelimit-limit-requests"],
                headers["x-ratelimit-remaining-requests"],
            )
            assert headers["x-ratelimit-reset-requests"].endswith("s")
            assert "x-ratelimit-limit-tokens" not in headers
        _, headers, body = replies[-1]
        assert "rate_limit_exceeded" == json.loads(body)["error"]["code"]
        assert 1 <= int(headers["Retry-After"]) <= 86400
        url = f"{base}/v2/models/simple/infer"
        _, headers, _ = await sent(client, "POST", url, DOCUMENT)
        assert "x-ratelimit-limit-requests" not in headers


async def test_the_head_of_a_stream_has_the_headers_of_quotas() -> None:
    """Server-sent events have the headers that a single response has; a refusal is no stream."""
    text = config().replace(
        "quotas:",
        """  words: {backend: python, options: {callable: "gateway.backends.examples:speak"}}
quotas:""",
    )
    async with running(text) as gateway, ClientSession() as client:
        url = f"http://{gateway.addresses['main.http']}/v1/completions"
        request = {"model": "words", "prompt": "one two", "stream": True}
        replies = [await sent(client, "POST", url, request) for _ in range(4)]
    for (status, headers, body), left in zip(replies[:3], "210", strict=True):
        assert (200, left) == (status, headers["x-ratelimit-remaining-requests"])
        assert headers["RateLimit"].startswith(f'"gold-day";r={left};t=')
        assert body.rstrip().endswith(b"data: [DONE]")
    status, headers, body = replies[3]
    assert (429, "0") == (status, headers["x-ratelimit-remaining-requests"])
    assert "rate_limit_exceeded" == json.loads(body)["error"]["code"]


async def test_grpc_trailers_state_the_wait() -> None:
    """Trailers have the headers, `RetryInfo` and the pushback in milliseconds."""
    quotas = "{rate: {limit: 1/min, burst: 1}}"
    async with (
        running(config(quotas)) as gateway,
        aio.insecure_channel(gateway.addresses["main.grpc"]) as channel,
    ):
        infer = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            request_serializer=oip.ModelInferRequest.SerializeToString,
            response_deserializer=oip.ModelInferResponse.FromString,
        )
        request = oip.ModelInferRequest(model_name="simple")
        codes = []
        for _ in range(2):
            with pytest.raises(aio.AioRpcError) as raised:
                await infer(request)
            codes.append(raised.value.code())
        assert codes == [grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.INVALID_ARGUMENT]
        tensors = [
            oip.ModelInferRequest.InferInputTensor(
                name=f"INPUT{number}",
                datatype="INT32",
                shape=[1, 16],
                contents=oip.InferTensorContents(int_contents=[1] * 16),
            )
            for number in range(2)
        ]
        request = oip.ModelInferRequest(model_name="simple", inputs=tensors)
        await infer(request)
        with pytest.raises(aio.AioRpcError) as raised:
            await infer(request)
        assert grpc.StatusCode.RESOURCE_EXHAUSTED is raised.value.code()
        trailers = dict(raised.value.trailing_metadata() or ())
        assert trailers["ratelimit-policy"] == '"rate";q=1;w=60'
        assert str(trailers["ratelimit"]).startswith('"rate";r=0;t=')
        assert 50_000 < int(trailers["grpc-retry-pushback-ms"]) <= 60_000
        status = bytes(trailers["grpc-status-details-bin"])
        assert b"type.googleapis.com/google.rpc.RetryInfo" in status


def oip_message(number: int) -> bytes:
    """Return a message of `ModelStreamInfer`."""
    tensors = [
        oip.ModelInferRequest.InferInputTensor(name=f"INPUT{each}", datatype="INT32", shape=[1, 16])
        for each in range(2)
    ]
    request = oip.ModelInferRequest(model_name="simple", id=str(number), inputs=tensors)
    request.raw_input_contents.extend([bytes(64)] * 2)
    return request.SerializeToString()


def trtis_message(number: int) -> bytes:
    """Return a message of TensorRT's `StreamInfer`."""
    header = trtis.InferRequestHeader(id=number, batch_size=1)
    for each in range(2):
        header.input.add(name=f"INPUT{each}")
    header.output.add(name="OUTPUT0")
    request = trtis.InferRequest(model_name="simple", model_version=-1, meta_data=header)
    request.raw_input.extend([bytes(64)] * 2)
    return request.SerializeToString()


def oip_refusal(data: bytes) -> str:
    """Return the error of a message of `ModelStreamInfer`, with its id; "" for none."""
    reply = oip.ModelStreamInferResponse.FromString(data)
    return f"{reply.infer_response.id}: {reply.error_message}" if reply.error_message else ""


def trtis_refusal(data: bytes) -> str:
    """Return the same of `StreamInfer`."""
    reply = trtis.InferResponse.FromString(data)
    status = reply.request_status
    if status.code == trtis.RequestStatusCode.SUCCESS:
        return ""
    assert trtis.RequestStatusCode.UNAVAILABLE == status.code
    return f"{reply.meta_data.id}: {status.msg}"


@pytest.mark.parametrize("transport", ["native", "reference"])
@pytest.mark.parametrize(
    ("path", "message", "refusal"),
    [
        ("/inference.GRPCInferenceService/ModelStreamInfer", oip_message, oip_refusal),
        ("/nvidia.inferenceserver.GRPCService/StreamInfer", trtis_message, trtis_refusal),
    ],
    ids=["oip", "trtis"],
)
async def test_a_quota_refuses_a_message_within_its_stream(
    transport: str, path: str, message: Callable[[int], bytes], refusal: Callable[[bytes], str]
) -> None:
    """Each message of a stream is counted; one beyond the quota is answered by an error message."""
    text = config("{rate: {limit: 1/min, burst: 1}}")
    text = text.replace("grpc: 127", f"transport: {transport}\n    grpc: 127")
    async with (
        running(text) as gateway,
        aio.insecure_channel(gateway.addresses["main.grpc"]) as channel,
    ):
        stream = channel.stream_stream(path)(message(number) for number in (1, 2, 3))
        found = [refusal(each) async for each in stream]
        assert grpc.StatusCode.OK is await stream.code()
    text = "this client has used up the quota 'rate'"
    assert ["", f"2: {text}", f"3: {text}"] == found


async def test_a_call_beyond_the_limit_at_once_is_too_large() -> None:
    """Elements and bytes are those of the inputs; more than the limit can never be admitted."""
    for quotas in ("{q: {unit: elements, limit: 31/day}}", "{q: {unit: bytes, limit: 127/day}}"):
        async with running(config(quotas)) as gateway, ClientSession() as client:
            url = f"http://{gateway.addresses['main.http']}/v2/models/simple/infer"
            assert (await sent(client, "POST", url, DOCUMENT))[0] == 413
    async with running(config("{q: {unit: elements, limit: 65/day}}")) as gateway:
        assert Counter({"ok": 2, "overloaded": 1}) == await codes(gateway, "oip.grpc", 3)


async def test_shadow_only_counts() -> None:
    """Every call is made, and those beyond the quota are counted by mode."""
    quotas = "{q: {limit: 1/day, mode: shadow}, r: {limit: 3/day, by: model}}"
    async with running(config(quotas)) as gateway:
        assert Counter({"ok": 3, "overloaded": 1}) == await codes(gateway, "oip.http", 4)
        page = (await gateway.page(""))[0].decode()
        shadow = 'gateway_quota_refused_total{client="anonymous",mode="shadow",quota="q"} '
        assert f"{shadow}2.0" in page or f"{shadow}3.0" in page
        assert (
            'gateway_quota_refused_total{client="anonymous",mode="enforce",quota="r"} 1.0' in page
        )
        assert 'gateway_quota_used{quota="r"} 3.0' in page


async def test_models_have_budgets_of_their_own_and_unknown_ones_cost_nothing() -> None:
    """A call of a model that does not exist reaches no target, and is given back."""
    async with (
        running(config("{q: {limit: 2/day, by: none}}")) as gateway,
        ClientSession() as client,
    ):
        base = f"http://{gateway.addresses['main.http']}/v2/models"
        statuses = [
            (await sent(client, "POST", f"{base}/{name}/infer", DOCUMENT))[0]
            for name in ("nothing", "nothing", "nothing", "simple", "simple", "simple")
        ]
        assert statuses == [404, 404, 404, 200, 200, 429]


async def test_counts_survive_a_restart(tmp_path: Path) -> None:
    """With a state directory the calls of the day before a restart still count."""
    text = config() + "state: {directory: state}\n"
    async with running(text, tmp_path) as gateway:
        assert Counter({"ok": 2}) == await codes(gateway, "oip.http", 2)
    async with running(text, tmp_path) as gateway:
        assert Counter({"ok": 1, "overloaded": 1}) == await codes(gateway, "oip.http", 2)


def test_workers_share_a_budget_exactly(tmp_path: Path) -> None:
    """Two workers admit exactly the calls of a day, and so do they when one is killed meanwhile."""
    more = "quotas: {q: {limit: 300/day, by: none}}"
    with two_workers(tmp_path, more=more) as gateway:
        host, _, port = gateway.addresses["main.http"].rpartition(":")

        def client(count: int) -> Counter[int]:
            statuses: Counter[int] = Counter()
            for _ in range(count):
                with closing(HTTPConnection(host, int(port), timeout=60)) as connection:
                    connection.request("POST", "/v2/models/simple/infer", BODY)
                    response = connection.getresponse()
                    response.read()
                    statuses[response.status] += 1
            return statuses

        def started() -> list[int]:
            return [each["pid"] for each in events(gateway, "worker started")]

        counts = client(40)
        os.kill(started()[0], signal.SIGKILL)
        eventually(lambda: len(started()) == 3)
        with ThreadPoolExecutor(4) as pool:
            counts += sum(pool.map(client, [100] * 4), Counter[int]())
        assert counts == Counter({200: 300, 429: 140})
        assert gateway.stop(signal.SIGINT) == 0


@pytest.mark.parametrize("workers", ["1", "2"])
def test_operators_see_what_clients_used_and_what_would_be_refused(
    tmp_path: Path, workers: str
) -> None:
    """The command, the path and the page have all workers; rules and quotas refuse nothing."""
    more = """\
quotas: {q: {limit: 50/day}, s: {limit: 8/day, by: [client, model], mode: shadow}}
security: {rules: [{name: later, operations: all, clients: [other], mode: shadow}]}
"""
    with two_workers(tmp_path, "--workers", workers, more=more) as gateway:
        for _ in range(20):
            with closing(connect(gateway)) as connection:
                assert 200 == ask_once(connection)
        admin = gateway.addresses["admin"]
        document = json.loads(command("quotas", admin, "--output", "json").stdout)
        found = {each["quota"]: each for each in document["budgets"]}
        assert (20, 30, "enforce") == tuple(found["q"][key] for key in ("used", "left", "mode"))
        assert (8, 0, "shadow") == tuple(found["s"][key] for key in ("used", "left", "mode"))
        assert {"client": "anonymous", "model": "simple"} == found["s"]["by"]
        text = command("quotas", admin, "--quota", "q").stdout
        assert ["q", "client=anonymous", "20", "30", "50/day"] == text.splitlines()[1].split()[:5]
        assert "no call was counted" in command("quotas", admin, "--client", "nobody").stdout
        page = get_text(gateway.url("/ui/quotas", "admin"))
        assert "client anonymous model simple" in page
        text = metrics(gateway)
    assert 'gateway_quota_refused_total{client="anonymous",mode="shadow",quota="s"} 12.0' in text
    labels = 'client="anonymous",operation="inference",rule=""'
    assert f"gateway_access_rehearsed_total{{{labels}}} 20.0" in text
    assert "gateway_access_denied_total{" not in text
    file = str(tmp_path / "workers.yaml")
    text = command("explain", file, "--model", "simple", "--client", "anonymous").stdout
    assert "access: allow, no rule is needed" in text
    assert "rehearsed: deny, no rule allows it" in text
    text = command("explain", file, "--model", "simple", "--client", "other").stdout
    assert "rehearsed: allow, rule later" in text


def get_text(url: str) -> str:
    """Return a page."""
    with urllib.request.urlopen(url, timeout=60) as response:  # noqa: S310  # of this machine
        text: str = response.read().decode()
    return text
