"""What one server reads and another refuses: its sidecar reads it too, and replies as it does.

Each case goes to the real server first. Through the sidecar, over either carrier to the server, it
has the same outputs.
"""

import json
import math
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import grpc
import numpy as np
import pytest

from gateway.schema import open_inference_pb2 as pb
from tests.integration.cli_kit import Running
from tests.interop.gateways import CARRIERS
from tests.interop.servers.process import RunningServer
from tests.interop.test_gateway import sidecar

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

SERVERS = ("triton", "mlserver", "kserve")
NUMPY = frozenset({"mlserver", "kserve"})
JSON_TYPE = {"Content-Type": "application/json"}


class Case(NamedTuple):
    """A request that only some servers read.

    Attributes:
        model: Its name.
        body: JSON, or what a server reads as such.
        servers: Those that reply with 200.
        carriers: Those to the server that can carry it.
    """

    model: str
    body: str
    servers: frozenset[str]
    carriers: tuple[str, ...] = CARRIERS


def one(datatype: str, data: str, shape: str = "[2]", parameters: str = "{}") -> str:
    return (
        f'{{"parameters":{parameters},"inputs":[{{"name":"INPUT0","datatype":"{datatype}",'
        f'"shape":{shape},"data":{data}}}]}}'
    )


def many(count: int) -> str:
    row = '{{"name":"INPUT{}","datatype":"INT64","shape":[1],"data":[{}]}}'
    return f'{{"inputs":[{",".join(row.format(number, number) for number in range(count))}]}}'


MLSERVER = frozenset({"mlserver"})
LONG = json.dumps({"s": "x" * 300_000})
CASES: Mapping[str, Case] = {
    "null_fp32": Case("identity_fp32", one("FP32", "[1.5,null]"), NUMPY),
    "null_fp64": Case("identity_fp64", one("FP64", "[null,2]"), NUMPY),
    "texts_of_numbers": Case("identity_fp32", one("FP32", '["NaN","-Infinity"]'), NUMPY),
    "words": Case("identity_fp64", one("FP64", "[NaN,-Infinity]"), frozenset({"triton", "kserve"})),
    "words_of_triton": Case("identity_fp64", one("FP64", "[-NaN,Inf]"), frozenset({"triton"})),
    "half": Case("identity_fp16", one("FP16", "[1.5,null]"), MLSERVER),
    "fractions": Case("identity_int64", one("INT64", "[1.0,1e3]"), NUMPY),
    "truncated": Case("identity_int64", one("INT64", '[-1.5,"7"]'), NUMPY),
    "flags": Case("identity_bool", one("BOOL", "[1,0]"), NUMPY),
    "one_dimension": Case("identity_int64", one("INT64", "[1,2,3,4]", "[2,-1]"), NUMPY),
    "other_nesting": Case("identity_int64", one("INT64", "[[1],[2]]"), NUMPY),
    "many_inputs": Case("identity_int64", many(300), NUMPY),
    "null_text": Case(
        "texts_or_null",
        '{"inputs":[{"name":"X","datatype":"BYTES","shape":[2],"data":["a",null]}]}',
        MLSERVER,
        ("http",),
    ),
    "object": Case(
        "texts_or_null",
        '{"parameters":{"extra":{"a":[1,{"b":null}]}},'
        '"inputs":[{"name":"X","datatype":"BYTES","shape":[1],"data":["a"]}]}',
        MLSERVER,
        ("http",),
    ),
    "list": Case(
        "params_echo", one("INT32", "[1,2]", parameters='{"l":[1,2]}'), MLSERVER, ("http",)
    ),
    "reserved": Case("params_echo", one("INT32", "[1,2]", parameters='{"priority":"high"}'), NUMPY),
    "long_parameter": Case(
        "params_echo", one("INT32", "[1,2]", parameters=LONG), frozenset(SERVERS)
    ),
}


@pytest.fixture(
    scope="module", params=[(name, carrier) for name in SERVERS for carrier in CARRIERS]
)
def front(request: pytest.FixtureRequest) -> Iterator[tuple[RunningServer, str, Running]]:
    """Run the default sidecar before each server, over each carrier."""
    name, carrier = request.param
    server: RunningServer = request.getfixturevalue(f"{name}_server")
    with sidecar(server, carrier) as running:
        yield server, carrier, running


def ask(url: str, body: str | None = None) -> tuple[int, str]:
    """Return the status and the text of a response, whatever the status."""
    data = None if body is None else body.encode()
    request = urllib.request.Request(url, data, JSON_TYPE)  # noqa: S310  # loopback
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=30) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def content(text: str) -> Any:
    """Return the outputs of a response and its parameter `extra`; NaN is a text."""
    document = json.loads(text, parse_constant=str)
    outputs = [
        (each["name"], each["datatype"], each["shape"], plain(each["data"]))
        for each in document["outputs"]
    ]
    return outputs, (document.get("parameters") or {}).get("extra")


def plain(data: list[Any]) -> list[Any]:
    """Return elements in which a text of parameters lacks what the gateway itself adds."""
    if data and isinstance(data[0], str) and data[0].startswith("{"):
        return [{**json.loads(data[0]), "binary_data_output": True}]
    return data


def test_a_sidecar_reads_what_its_server_reads(
    front: tuple[RunningServer, str, Running],
) -> None:
    """A front was as strict as Triton, whatever stood behind it."""
    server, carrier, running = front
    for name, case in CASES.items():
        path = f"/v2/models/{case.model}/infer"
        if server.name not in case.servers:
            continue
        status, direct = ask(server.http_url + path, case.body)
        assert 200 == status, (name, direct)
        seen, text = ask(running.url(path), case.body)
        if carrier in case.carriers:
            assert (200, content(direct)) == (seen, content(text)), (name, text)
        else:
            assert (501, True) == (seen, "only JSON over HTTP" in text), (name, text)


def test_a_sidecar_is_as_strict_as_its_server(front: tuple[RunningServer, str, Running]) -> None:
    """What the server refuses is refused before it, with the reason."""
    server, _, running = front
    for name, case in CASES.items():
        if server.name in case.servers or case.model == "texts_or_null":
            continue
        path = f"/v2/models/{case.model}/infer"
        status, text = ask(running.url(path), case.body)
        assert 400 == status, (name, text)
        assert "error" in json.loads(text)


@pytest.mark.parametrize("path", ["NOPE", "NOPE/versions/7"])
def test_a_model_that_does_not_exist_is_not_found(
    front: tuple[RunningServer, str, Running], path: str
) -> None:
    """Its readiness was 503, as if it were to come; over gRPC it is false, as Triton's."""
    server, _, running = front
    if server.name == "kserve" and "/" in path:
        pytest.skip("KServe has no versions")
    assert 404 == ask(running.url(f"/v2/models/{path}/ready"))[0]
    name, _, version = path.partition("/versions/")
    with grpc.insecure_channel(running.addresses["main.grpc"]) as channel:
        ready = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelReady",
            pb.ModelReadyRequest.SerializeToString,
            pb.ModelReadyResponse.FromString,
        )
        assert not ready(pb.ModelReadyRequest(name=name, version=version), timeout=30).ready


def test_binary_nan_reaches_every_server(front: tuple[RunningServer, str, Running]) -> None:
    """MLServer has no binary tensors over HTTP, so NaN from a client of gRPC was refused."""
    _, _, running = front
    values = np.array([[1, math.nan, math.inf]], np.float32)
    message = pb.ModelInferRequest(model_name="identity_fp32")
    message.inputs.add(name="INPUT0", datatype="FP32", shape=values.shape)
    message.raw_input_contents.append(values.tobytes())
    with grpc.insecure_channel(running.addresses["main.grpc"]) as channel:
        infer = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            pb.ModelInferRequest.SerializeToString,
            pb.ModelInferResponse.FromString,
        )
        reply = infer(message, timeout=30)
    found = np.frombuffer(reply.raw_output_contents[0], np.float32)
    assert [False, True] == np.isnan(found[:2]).tolist()
    assert not np.isfinite(found[2])  # MLServer writes an infinity as null, which is NaN


def test_kserve_predictions_of_the_first_protocol_pass(
    front: tuple[RunningServer, str, Running],
) -> None:
    """A sidecar of an HTTP KServe forwards V1; before another server it serves V1 itself.

    Both protocols list models: a client without a key gets the list of the server.
    """
    server, carrier, running = front
    body = json.dumps({"instances": [[1, 2], [3, 4]]})
    paths = ["/v1/models/rows:predict", "/v1/models/rows%3Apredict", "/v1/models/rows:explain"]
    if (server.name, carrier) != ("kserve", "http"):
        # `rows` is no model of the other servers, or one of another shape; nobody explains it.
        found = [ask(running.url(path), body)[0] for path in paths]
        assert {400, 404} >= set(found[:2])
        assert {404, 501} >= set(found[2:])
        return
    for path in paths:
        assert ask(server.http_url + path, body) == ask(running.url(path), body)
    # Without a key the list is that of the server.
    assert ask(f"{server.http_url}/v1/models") == ask(running.url("/v1/models"))
    one = json.loads(ask(running.url("/v1/models/rows"))[1])
    assert ("rows", True) == (one["name"], one["ready"])
    assert 413 == ask(running.url(paths[0]), json.dumps({"instances": [[1]] * 5000}))[0]


def test_text_that_is_cut_within_a_character_stays_whole(
    front: tuple[RunningServer, str, Running],
) -> None:
    """Pieces that ended within a character were error events."""
    server, _, running = front
    if server.name != "triton":
        pytest.skip("only Triton sends texts in pieces of bytes")
    text = "naïve 日本 🎉"
    body = json.dumps({"text_input": text})
    status, events = ask(running.url("/v2/models/generate_bytes/generate_stream"), body)
    found = [json.loads(each.removeprefix("data: ")) for each in events.split("\n\n") if each]
    assert (200, text) == (status, "".join(each["text_output"] for each in found))
    assert len(text.encode()) == len(found)
