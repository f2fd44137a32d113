"""Every path and method of grps at a whole gateway: its requests and responses."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from typing import Any

import grpc
import pytest
import yaml

from gateway.schema import grps_pb2 as pb
from tests.integration.cli_kit import Running, serving
from tests.integration.grps_kit import TIMEOUT_S, Channel, post, values
from tests.integration.workers_kit import eventually

SUCCESS = {"code": 200, "msg": "OK", "status": "SUCCESS"}
PREDICT = "/grps/v1/infer/predict"
ROW = list(range(16))
TENSORS = [
    {"name": name, "dtype": "DT_INT32", "shape": [1, 16], "flat_int32": ROW}
    for name in ("INPUT0", "INPUT1")
]
SUM = {
    "name": "OUTPUT0",
    "dtype": "DT_INT32",
    "shape": [1, 16],
    "flat_int32": [2 * n for n in ROW],
}

CHAT = """
        customized:
          - path: /v1/chat
            model: speak
            inputs: [{name: text, place: "messages[-1].content", shape: [1]}]
            parameters: {max_tokens: max_tokens}
            answer: '{"words": "${token[0]}"}'
            error: '{"error": "${message}", "code": "${code}"}'
            stream:
              {mode: body_param, key: stream, content_type: text/event-stream,
               before: "data: ", after: "\\n\\n", end: "data: [DONE]\\n\\n"}
          - path: /v1/wide
            model: wide
            body: form
            inputs: [{name: INPUT0, datatype: UINT16, place: number, shape: [1]}]
            answer: '{"same": "${OUTPUT0}"}'
          - {path: /predict, model: speak}
"""
CONFIG = (
    f"""
version: 1
listeners:
  - http: 127.0.0.1:0
    grpc: 127.0.0.1:0
    messages: {{bytes_element_size: 48MiB}}
    options:
      grps: {CHAT}
  - name: own
    http: 127.0.0.1:0
    grpc: 127.0.0.1:0
    protocols: [grps]
    default_model: speak
    options: {{grps: {{switch: true}}}}
  - name: cpp
    http: 127.0.0.1:0
    protocols: [grps]
    options: {{grps: {{http_always_200: true}}}}
admin: {{address: null, metrics: null}}
models:
"""
    + "".join(
        f'  {name}: {{backend: python, options: {{callable: "gateway.backends.examples:{of}"}}}}\n'
        for name, of in {
            "simple": "simple",
            "speak": "speak",
            "fail": "fail",
            "a-b": "identity_bytes",
            "wide": "identity_uint16",
            "floats": "identity_fp32",
            "bytes": "identity_bytes",
        }.items()
    )
    + "lifecycle: {pre_stop: 0s}\n"
)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A gateway with a listener that all protocols share, and two of grps alone."""
    config = tmp_path_factory.mktemp("grps") / "gateway.yaml"
    config.write_text(CONFIG)
    with serving(str(config)) as found:
        yield found


def get(address: str, path: str, method: str = "GET") -> tuple[int, str, bytes]:
    """Return status, content type and body of a request without one."""
    with closing(HTTPConnection(address, timeout=TIMEOUT_S)) as connection:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.getheader("Content-Type", ""), response.read()


def document_of(response: tuple[int, str, bytes]) -> Any:
    """Return the document of a response, whose HTTP status is the code of its Status."""
    document = json.loads(response[2])
    assert ("application/json", response[0]) == (response[1], document["status"]["code"])
    return document


@pytest.mark.parametrize("key", ["simple", "simple-1"])
@pytest.mark.parametrize("where", ["body", "query", "both"])
def test_model_is_named_in_the_body_or_the_query(running: Running, key: str, where: str) -> None:
    """The key is name or name-version; the body takes precedence over the query."""
    body: dict[str, Any] = {"gtensors": {"tensors": TENSORS}}
    query = {"body": "", "query": f"?model={key}", "both": "?model=nobody"}[where]
    if where != "query":
        body["model"] = key
    document = document_of(post(running.addresses["main.http"], PREDICT + query, body))
    assert SUCCESS == document["status"]
    assert SUM == document["gtensors"]["tensors"][0]
    with Channel(running.addresses["main.grpc"]) as channel:
        data = pb.GenericTensorData(
            tensors=[
                pb.GenericTensor(name=name, dtype=pb.DT_INT32, shape=[1, 16], flat_int32=ROW)
                for name in ("INPUT0", "INPUT1")
            ]
        )
        response = channel.ask("Predict", model=key, gtensors=data)
    assert SUM["flat_int32"] == list(response.gtensors.tensors[0].flat_int32)


@pytest.mark.parametrize(
    ("key", "code", "word"),
    [
        ("nobody", 404, "nobody"),
        ("simple-9", 404, "simple"),
        ("", 404, "names no model"),
        ("fail-1", 400, "INPUT0"),
    ],
)
def test_unknown_model_is_a_failure(running: Running, key: str, code: int, word: str) -> None:
    """404 over HTTP; over gRPC the call succeeds, and its Status has the same code."""
    body = {"str_data": "x", "model": key}
    document = document_of(post(running.addresses["main.http"], PREDICT, body))
    assert (code, "FAILURE") == (document["status"]["code"], document["status"]["status"])
    assert word in document["status"]["msg"]
    assert {"status"} == document.keys()
    with Channel(running.addresses["main.grpc"]) as channel:
        response = channel.ask("Predict", str_data="x", model=key)
    assert (code, pb.Status.FAILURE) == (response.status.code, response.status.status)
    assert response.WhichOneof("data_oneof") is None


def test_model_name_with_a_dash_is_not_split(running: Running) -> None:
    """A name with a dash works with and without a version."""
    for key in ("a-b", "a-b-1"):
        response = post(running.addresses["main.http"], PREDICT, {"str_data": "x", "model": key})
        assert "x" == document_of(response)["str_data"]


def test_request_without_a_model_uses_the_default(running: Running) -> None:
    """A real server calls this the default DAG."""
    response = post(running.addresses["own.http"], PREDICT, {"str_data": "one two"})
    assert "one two" == document_of(response)["str_data"]
    with Channel(running.addresses["own.grpc"]) as channel:
        assert "one two" == channel.ask("Predict", str_data="one two").str_data


def test_octet_stream_in_and_out(running: Running) -> None:
    """An octet-stream is one element, and so is its response; errors are JSON."""
    address, kind = running.addresses["main.http"], "application/octet-stream"
    data = bytes(range(256))
    assert (200, kind, data) == post(address, f"{PREDICT}?model=bytes-1", data, kind)
    failed = document_of(post(address, f"{PREDICT}?model=nobody", data, kind))
    assert 404 == failed["status"]["code"]
    with Channel(running.addresses["main.grpc"]) as channel:
        assert data == channel.ask("Predict", model="bytes", bin_data=data).bin_data


def test_ndarray_in_and_out(running: Running) -> None:
    """A nested list is one FP32 tensor, returned as a list with `return-ndarray`."""
    address = running.addresses["main.http"]
    body = {"ndarray": [[1.5, -2], [3, 4]], "model": "floats"}
    (tensor,) = document_of(post(address, PREDICT, body))["gtensors"]["tensors"]
    assert ([2, 2], [1.5, -2, 3, 4]) == (tensor["shape"], tensor["flat_float32"])
    path = f"{PREDICT}?return-ndarray=TRUE"
    assert [[1.5, -2], [3, 4]] == document_of(post(address, path, body))["ndarray"]
    both = document_of(post(address, f"{path}&streaming=true", body))
    assert 400 == both["status"]["code"]
    assert "not supported at the same time" in both["status"]["msg"]


def test_integers_are_narrowed_to_the_declared_datatype(running: Running) -> None:
    """INT32 in the range of UINT16 is UINT16 to the model; a value beyond it is an error."""
    address = running.addresses["main.http"]

    def body(value: int) -> dict[str, Any]:
        tensor = {"dtype": "DT_INT32", "shape": [1], "flat_int32": [value]}
        return {"gtensors": {"tensors": [tensor]}, "model": "wide"}

    (tensor,) = document_of(post(address, PREDICT, body(65535)))["gtensors"]["tensors"]
    assert ("DT_INT32", [65535]) == (tensor["dtype"], tensor["flat_int32"])
    failed = document_of(post(address, PREDICT, body(65536)))
    assert 400 == failed["status"]["code"]
    assert "'INPUT0'" in failed["status"]["msg"]
    assert "is UINT16, sent as INT32" in failed["status"]["msg"]


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_offline_switch_applies_to_all_protocols(running: Running, method: str) -> None:
    """Offline over one carrier is not ready over the others and in Open Inference, but alive."""
    own, main = running.addresses["own.http"], running.addresses["main.http"]
    health = "/grps/v1/health/"
    with Channel(running.addresses["own.grpc"]) as channel:
        for switch, code in (("offline", 503), ("online", 200)):
            assert SUCCESS == document_of(get(own, health + switch, method))["status"]
            assert code == document_of(get(main, f"{health}ready", method))["status"]["code"]
            assert code == channel.ask("CheckReadiness").status.code
            assert code == get(main, "/v2/health/ready")[0]
            assert SUCCESS == document_of(get(main, f"{health}live", method))["status"]
            assert 200 == channel.ask("CheckLiveness").status.code
            predicted = post(own, PREDICT, {"str_data": "still"})
            assert "still" == document_of(predicted)["str_data"]
        assert 200 == channel.ask("Offline").status.code
        assert "Service Unavailable" == document_of(get(own, f"{health}ready"))["status"]["msg"]
        assert 200 == channel.ask("Online").status.code
        assert 200 == document_of(get(own, f"{health}ready"))["status"]["code"]


def test_data_port_rejects_offline(running: Running) -> None:
    """Online changes nothing and succeeds, since clients call it first."""
    main = running.addresses["main.http"]
    assert SUCCESS == document_of(get(main, "/grps/v1/health/online"))["status"]
    refused = document_of(get(main, "/grps/v1/health/offline"))
    assert (403, "FAILURE") == (refused["status"]["code"], refused["status"]["status"])
    with Channel(running.addresses["main.grpc"]) as channel:
        assert (200, 403) == tuple(
            channel.ask(method).status.code for method in ("Online", "Offline")
        )
    assert 200 == document_of(get(main, "/grps/v1/health/ready"))["status"]["code"]


def test_metadata_lists_inputs_and_outputs_as_yaml(running: Running) -> None:
    """Server metadata has every model; model metadata takes a plain name, over both carriers."""
    address = running.addresses["main.http"]
    document = document_of(get(address, "/grps/v1/metadata/server"))
    models = {each["name"]: each for each in yaml.safe_load(document["str_data"])["models"]}
    assert {"simple", "speak", "a-b"} <= models.keys()
    expected = {
        "name": "simple",
        "version": "1",
        "inferer_type": "python",
        "inputs": [
            {"name": name, "dtype": "DT_INT32", "shape": [-1, 16]} for name in ("INPUT0", "INPUT1")
        ],
        "outputs": [
            {"name": name, "dtype": "DT_INT32", "shape": [-1, 16]}
            for name in ("OUTPUT0", "OUTPUT1")
        ],
    }
    assert expected == models["simple"]
    path = "/grps/v1/metadata/model"
    reply = document_of(post(address, path, {"str_data": "simple"}))
    assert expected == yaml.safe_load(reply["str_data"])
    wide = yaml.safe_load(document_of(post(address, path, {"str_data": "wide"}))["str_data"])
    assert ("DT_INT32", "UINT16") == (wide["inputs"][0]["dtype"], wide["inputs"][0]["datatype"])
    assert 404 == document_of(post(address, path, {"str_data": "nobody"}))["status"]["code"]
    assert 400 == document_of(post(address, path, {"gmap": {}}))["status"]["code"]
    with Channel(running.addresses["main.grpc"]) as channel:
        server = channel.ask("ServerMetadata")
        assert 200 == server.status.code
        assert yaml.safe_load(document["str_data"]) == yaml.safe_load(server.str_data)
        response = channel.ask("ModelMetadata", str_data="simple")
        assert expected == yaml.safe_load(response.str_data)
        assert 404 == channel.ask("ModelMetadata", str_data="nobody").status.code


def test_status_page_is_on_every_listener_of_grps(running: Running) -> None:
    """It is at `/` unless another protocol claims that path, and always at its own path."""
    for name, path in (
        ("own", "/"),
        ("own", "/grps/v1/monitor/metrics"),
        ("main", "/grps/v1/monitor/metrics"),
    ):
        status, kind, page = get(running.addresses[f"{name}.http"], path)
        assert (200, "text/html; charset=utf-8") == (status, kind)
        assert b"speak" in page
        assert b"qps" in page
    assert 200 == get(running.addresses["main.http"], "/")[0]
    assert 404 == get(running.addresses["main.http"], "/other")[0]


def test_series_count_recent_inferences(running: Running) -> None:
    """Each inference counts, in any protocol, once its second is over."""
    address = running.addresses["main.http"]
    document_of(post(address, PREDICT, {"str_data": "x", "model": "bytes"}))
    path = "/grps/v1/monitor/series?name="

    def is_counted() -> bool:
        status, kind, text = get(address, f"{path}*qps")
        assert (200, "application/json") == (status, kind)
        document = json.loads(text)
        assert ("trend", list(range(174))) == (
            document["label"],
            [place for place, _ in document["data"]],
        )
        return any(value for _, value in document["data"][114:])

    eventually(is_counted, TIMEOUT_S)
    document = json.loads(get(address, f"{path}latency_cdf%28ms%29")[2])
    assert "cdf" == document["label"]
    assert all(value > 0 for _, value in document["data"])


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("GET", "/grps/v1/nothing", 404),
        ("GET", "/grps", 404),
        ("GET", PREDICT, 405),
        ("PUT", "/grps/v1/health/ready", 405),
        ("GET", "/nothing", 404),
        ("GET", "/grps/v1/monitor/series?name=x", 404),
    ],
)
def test_unknown_paths_and_methods_are_failures(
    running: Running, method: str, path: str, code: int
) -> None:
    """On a listener of grps alone every path gets a response in its form."""
    document = document_of(get(running.addresses["own.http"], path, method))
    assert (code, "FAILURE") == (document["status"]["code"], document["status"]["status"])


def test_listener_option_makes_every_status_200(running: Running) -> None:
    """As in the C++ server, only the body has the error."""
    status, _, text = post(running.addresses["cpp.http"], PREDICT, {"str_data": "x"})
    assert (200, 404) == (status, json.loads(text)["status"]["code"])


def test_invalid_messages_and_methods_have_a_grpc_status(running: Running) -> None:
    """Over gRPC an unreadable message and an unknown method end the call."""
    with grpc.insecure_channel(running.addresses["main.grpc"]) as channel:
        for method, message, status in (
            ("Predict", b"\xff\xff", grpc.StatusCode.INVALID_ARGUMENT),
            ("Nothing", b"", grpc.StatusCode.UNIMPLEMENTED),
        ):
            ask = channel.unary_unary(f"/grps.protos.v1.GrpsService/{method}")
            with pytest.raises(grpc.RpcError) as caught:
                ask(message, timeout=TIMEOUT_S)
            assert status is caught.value.code()
        brpc = channel.unary_unary("/grps.protos.v1.GrpsBrpcService/Predict")
        with pytest.raises(grpc.RpcError) as caught:
            brpc(b"", timeout=TIMEOUT_S)
        assert grpc.StatusCode.UNIMPLEMENTED is caught.value.code()


def test_large_messages_pass_over_grpc(running: Running) -> None:
    """48 MiB pass in both directions where the element limit allows it."""
    data = bytes(48 << 20)
    with Channel(running.addresses["main.grpc"]) as channel:
        response = channel.ask("Predict", model="bytes", bin_data=data)
    assert data == response.bin_data
    with Channel(running.addresses["own.grpc"]) as channel:
        refused = channel.ask("Predict", model="bytes", bin_data=data).status
    assert 413 == refused.code
    assert "bin_data has 50331648 bytes; at most 16777216 are allowed" in refused.msg


def test_customised_route_renders_its_template(running: Running) -> None:
    """A chat request becomes a text and a parameter; the response is whole or streamed."""
    address = running.addresses["main.http"]
    body = {"messages": [{"content": "no"}, {"content": "one two three"}], "max_tokens": 2}
    status, kind, text = post(address, "/v1/chat", body)
    assert (200, "application/json", {"words": "one two"}) == (status, kind, json.loads(text))
    status, kind, text = post(address, "/v1/chat", {**body, "stream": True})
    assert (200, "text/event-stream") == (status, kind)
    expected = 'data: {"words":"one"}\n\ndata: {"words":" two"}\n\ndata: [DONE]\n\n'
    assert expected == text.decode()
    status, _, text = post(address, "/v1/chat", {"messages": []})
    assert (400, 400) == (status, json.loads(text)["code"])
    assert 404 == get(address, "/v1/chat/more")[0]


def test_customised_route_accepts_forms(running: Running) -> None:
    """Form fields are inputs of their datatypes; an invalid one is named."""
    address = running.addresses["main.http"]
    kind = "application/x-www-form-urlencoded"
    status, _, text = post(address, "/v1/wide", b"number=7", kind)
    assert (200, {"same": [7]}) == (status, json.loads(text))
    status, _, text = post(address, "/v1/wide", b"number=70000", kind)
    assert 400 == status
    assert b"number is out of the range of UINT16" in text


def test_additional_predict_path(running: Running) -> None:
    """It accepts grps messages, also streamed, for its model."""
    address = running.addresses["main.http"]
    assert "a b" == document_of(post(address, "/predict", {"str_data": "a b"}))["str_data"]
    _, _, text = post(address, "/predict?streaming=true", {"str_data": "a b"})
    assert ["a", " b"] == [value["str_data"] for value in values(text)]


def test_request_in_single_bytes_is_read(running: Running) -> None:
    """A request may arrive byte by byte."""
    body = json.dumps({"str_data": "hello", "model": "bytes"}).encode()
    head = (
        f"POST {PREDICT} HTTP/1.1\r\nHost: h\r\nContent-Type: application/json; charset=utf-8\r\n"
    )
    wire = f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body
    host, _, port = running.addresses["main.http"].rpartition(":")
    with socket.create_connection((host, int(port)), TIMEOUT_S) as sock:
        for at in range(len(wire)):
            sock.sendall(wire[at : at + 1])
        response = b""
        while piece := sock.recv(4096):
            response += piece
    assert b'"str_data":"hello"' in response
