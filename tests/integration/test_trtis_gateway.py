"""TensorRT v1 through whole gateways over real sockets: sizes, headers, streams, shared memory."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from time import monotonic

import grpc
import pytest
from google.protobuf import text_format

from gateway.schema import tensorrt_v1_pb2 as pb
from tests.integration.cli_kit import Running, serving

SERVICE = "/nvidia.inferenceserver.GRPCService/"
CONTROL = "/api/sharedmemorycontrol"
PAIR = struct.pack("<16i", *range(16)) + struct.pack("<16i", *[3] * 16)
SUM = struct.pack("<16i", *range(3, 19))
HEADER = (
    'batch_size: 1 input { name: "INPUT0" dims: 16 } input { name: "INPUT1" dims: 16 } '
    'output { name: "OUTPUT0" }'
)
FLOATS = 'input { name: "INPUT0" dims: %d } output { name: "OUTPUT0" } batch_size: 1'
BY_HAND = (
    """batch_size:1,input<name:'INPUT0';dims:[16]>,input:{name:"INPUT" '1' dims:[0x10]}"""
    """output:[{name:"\\117UTPUT0"}]"""
)
MIB = 1 << 20

CONFIG = """
version: 1
listeners:
  - {http: "127.0.0.1:0", grpc: "127.0.0.1:0", shared_memory: map, transport: MAKE}
  - {name: passing, http: "127.0.0.1:0", shared_memory: {mode: forward, keys: "*"}, transport: MAKE}
  - {name: named, http: "127.0.0.1:0", shared_memory: {mode: map, keys: "app-*"}, transport: MAKE}
admin: {address: null, metrics: null}
lifecycle: {pre_stop: 0s}
models:
  simple: {backend: python, options: {callable: "gateway.backends.examples:simple"}}
  slow: {backend: python, options: {callable: "gateway.backends.examples:slow", instances: 8}}
  floats:
    backend: python
    options: {callable: "gateway.backends.examples:identity_fp32"}
    signature:
      max_batch_size: 0
      inputs: [{name: INPUT0, datatype: FP32, shape: [-1]}]
      outputs: [{name: OUTPUT0, datatype: FP32, shape: [-1]}]
  halves:
    backend: python
    options: {callable: "gateway.backends.examples:identity_bf16"}
    signature:
      inputs: [{name: INPUT0, datatype: BF16, shape: [1]}]
      outputs: [{name: OUTPUT0, datatype: BF16, shape: [1]}]
"""
FORWARDING = """
version: 1
listeners: [{http: "127.0.0.1:0", grpc: "127.0.0.1:0", shared_memory: {mode: forward, keys: "*"}}]
admin: {address: null, metrics: null}
lifecycle: {pre_stop: 0s}
upstreams: {old: {url: "trtis+http://ADDRESS"}}
"""


@pytest.fixture(scope="module", params=["reference", "native"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    """A gateway with models of its own, over either make of transports."""
    file = tmp_path_factory.mktemp("trtis") / "gateway.yaml"
    file.write_text(CONFIG.replace("MAKE", request.param))
    with serving(str(file)) as running:
        yield running


@pytest.fixture
def segment(server: Running) -> Iterator[Path]:
    """A segment with both inputs and space for one output; it is not registered yet."""
    file = Path(f"/dev/shm/trtis-{os.getpid()}")  # noqa: S108  # where segments are
    file.write_bytes(PAIR + bytes(64))
    try:
        yield file
    finally:
        post(server.addresses["main.http"], f"{CONTROL}/unregisterall")
        file.unlink()


def post(
    address: str, path: str, header: str = "", body: bytes = b"", **fields: str
) -> tuple[HTTPResponse, bytes]:
    """Return response and body of a POST."""
    headers = {name.replace("_", "-"): value for name, value in fields.items()}
    if header:
        headers["NV-InferRequest"] = header
    with closing(HTTPConnection(address, timeout=60)) as connection:
        connection.request("POST", path, body, headers)
        response = connection.getresponse()
        return response, response.read()


def infer(server: Running, model: str, header: str, body: bytes) -> tuple[HTTPResponse, bytes]:
    """Return response and body of an inference."""
    return post(server.addresses["main.http"], f"/api/infer/{model}?format=binary", header, body)


def status(response: HTTPResponse) -> pb.RequestStatus:
    """Return the message in NV-Status."""
    return text_format.Parse(response.getheader("NV-Status", ""), pb.RequestStatus())


def channel(server: Running) -> grpc.Channel:
    """Return a channel without the library's own limit of 4 MiB."""
    options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    return grpc.insecure_channel(server.addresses["main.grpc"], options=options)


def infer_message(model: str, header: str, *raws: bytes, number: int = 0) -> bytes:
    """Return an InferRequest over gRPC."""
    message = pb.InferRequest(model_name=model, model_version=-1, raw_input=raws)
    text_format.Parse(header, message.meta_data)
    message.meta_data.id = number
    return message.SerializeToString()


def ask(server: Running, method: str, message: bytes) -> bytes:
    """Return the response of a call over gRPC."""
    with channel(server) as opened:
        found: bytes = opened.unary_unary(SERVICE + method)(message, timeout=60)
        return found


def test_response_has_a_length_and_no_coding(server: Running) -> None:
    """Content-Length is set, chunks and codings are not used, and the header is sent twice."""
    response, body = post(
        server.addresses["main.http"], "/api/infer/simple", HEADER, PAIR, Accept_Encoding="gzip"
    )
    assert (200, str(len(body))) == (response.status, response.getheader("Content-Length"))
    assert response.getheader("Transfer-Encoding") is None
    assert response.getheader("Content-Encoding") is None
    assert SUM == body[:64]
    line = text_format.Parse(response.getheader("NV-InferResponse", ""), pb.InferResponseHeader())
    assert line == text_format.Parse(body[64:].decode(), pb.InferResponseHeader())


@pytest.mark.parametrize("size", [8000, 64 << 10])
def test_accepts_long_headers(server: Running, size: int) -> None:
    """Models with many tensors need an NV-InferRequest of 8 KiB and more."""
    response, body = infer(server, "simple", HEADER + " " * (size - len(HEADER)), PAIR)
    assert (200, SUM) == (response.status, body[:64])


@pytest.mark.parametrize(
    "header",
    [
        BY_HAND,
        'output { name: "OUTPUT0" } input { name: "INPUT0" } input { name: "INPUT1" } batch_size: 1',
    ],
    ids=["by-hand", "any-order"],
)
def test_accepts_any_text_format(server: Running, header: str) -> None:
    """Hand-written text format and any order of fields are read."""
    response, body = infer(server, "simple", header, PAIR)
    assert (200, SUM) == (response.status, body[:64])


def test_http_and_grpc_share_request_numbers(server: Running) -> None:
    """Two requests of one server never have the same number, over either carrier."""
    numbers = []
    for _ in range(3):
        response, _ = infer(server, "simple", HEADER, PAIR)
        numbers.append(status(response).request_id)
        message = pb.HealthRequest(mode="live").SerializeToString()
        found = pb.HealthResponse.FromString(ask(server, "Health", message))
        numbers.append(found.request_status.request_id)
    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize(
    "more", ["nonsense: 1", "later { field: [1, 2] other < a: 'b' > }", "input { shape: 1 }"]
)
def test_unknown_header_fields_are_rejected(server: Running, more: str) -> None:
    """An unknown field is an error, as in the real server's parser."""
    response, body = infer(server, "simple", f"{HEADER} {more}", PAIR)
    assert (400, b"") == (response.status, body)
    assert "has no field" in (response.headers.get("NV-Status") or "")


@pytest.mark.parametrize("header", ["", "batch_size", HEADER + " }", "input {"])
def test_invalid_headers_are_rejected(server: Running, header: str) -> None:
    """A missing or invalid header gets 400 and INVALID_ARG."""
    response, _ = infer(server, "simple", header, PAIR)
    assert (400, pb.INVALID_ARG) == (response.status, status(response).code)


def test_header_order_assigns_the_input_bytes(server: Running) -> None:
    """The order of the header counts, not that of the model."""
    header = (
        'batch_size: 1 input { name: "INPUT1" dims: 16 } input { name: "INPUT0" dims: 16 } '
        'output { name: "OUTPUT1" } output { name: "OUTPUT0" }'
    )
    response, body = infer(server, "simple", header, PAIR)
    assert 200 == response.status
    assert struct.pack("<16i", *[3 - value for value in range(16)]) == body[:64]
    assert SUM == body[64:128]


def test_accepts_large_tensors_over_http(server: Running) -> None:
    """8 MiB exceed the default limit of many HTTP servers."""
    data = os.urandom(8 * MIB)
    response, body = infer(server, "floats", FLOATS % (2 * MIB), data)
    assert (200, True) == (response.status, body[: len(data)] == data)


def test_accepts_large_tensors_over_grpc(server: Running) -> None:
    """8 MiB in each direction exceed the default limit of gRPC libraries."""
    data = os.urandom(8 * MIB)
    found = ask(server, "Infer", infer_message("floats", FLOATS % (2 * MIB), data))
    response = pb.InferResponse.FromString(found)
    assert (pb.SUCCESS, True) == (response.request_status.code, response.raw_output[0] == data)


def test_accepts_empty_tensors(server: Running) -> None:
    """A dimension of 0 needs no bytes, so the body may be empty."""
    response, body = infer(server, "floats", FLOATS % 0, b"")
    assert 200 == response.status
    header = pb.InferResponseHeader.FromString(body)
    assert [0] == list(header.output[0].raw.dims)
    found = pb.InferResponse.FromString(
        ask(server, "Infer", infer_message("floats", FLOATS % 0, b""))
    )
    assert [b""] == list(found.raw_output)


def test_request_without_outputs_returns_none(server: Running) -> None:
    """A request that names no output gets none, unlike in later protocols."""
    response, body = infer(server, "simple", HEADER.partition(" output")[0], PAIR)
    assert 200 == response.status
    assert [] == list(pb.InferResponseHeader.FromString(body).output)


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/api/infer/simple/1", pb.SUCCESS),
        ("/api/infer/simple/01", pb.SUCCESS),
        ("/api/infer/simple/2", pb.UNAVAILABLE),
        ("/api/infer/simple/0", pb.UNAVAILABLE),
        ("/api/infer/nobody", pb.UNAVAILABLE),
    ],
)
def test_unknown_versions_and_models_are_rejected(server: Running, path: str, code: int) -> None:
    """An existing version replies; an unknown version or model has its error code."""
    response, _ = post(server.addresses["main.http"], path, HEADER, PAIR)
    assert code == status(response).code
    assert (200 if code == pb.SUCCESS else 400) == response.status


def test_unsupported_datatype_is_named(server: Running) -> None:
    """A model of BF16 is missing in the list of all, and rejected with its datatype's name."""
    with closing(HTTPConnection(server.addresses["main.http"], timeout=60)) as connection:
        connection.request("GET", "/api/status?format=binary")
        whole = pb.ServerStatus.FromString(connection.getresponse().read())
        connection.request("GET", "/api/status/halves?format=binary")
        response = connection.getresponse()
        response.read()
    assert {"simple", "slow", "floats"} == set(whole.model_status)
    found = status(response)
    assert (pb.UNSUPPORTED, True) == (found.code, "BF16" in found.msg)
    header = 'batch_size: 1 input { name: "INPUT0" dims: 1 } output { name: "OUTPUT0" }'
    refused, _ = infer(server, "halves", header, bytes(2))
    assert (pb.UNSUPPORTED, True) == (status(refused).code, "BF16" in status(refused).msg)


def test_stream_runs_concurrently_and_replies_in_order(server: Running) -> None:
    """Slow requests run concurrently, and their responses keep the order of the requests."""
    header = 'batch_size: 1 input { name: "INPUT0" dims: 1 } output { name: "OUTPUT0" }'
    requests = [
        infer_message("slow", header, struct.pack("<i", wait), number=wait)
        for wait in (1500, 1499, 1498, 1)
    ]
    bad = infer_message("slow", header, b"", number=7)
    began = monotonic()
    with channel(server) as opened:
        call = opened.stream_stream(SERVICE + "StreamInfer")(iter([*requests, bad, *requests]))
        found = [pb.InferResponse.FromString(data) for data in call]
        assert grpc.StatusCode.OK is call.code()
    assert monotonic() - began < 6  # one after another they take 9 s
    ids = [1500, 1499, 1498, 1]
    assert [*ids, 7, *ids] == [response.meta_data.id for response in found]
    assert [4] == [
        place for place, response in enumerate(found) if response.request_status.code != pb.SUCCESS
    ]


def test_regions_are_shared_by_the_carriers(server: Running, segment: Path) -> None:
    """A region registered over HTTP is listed, used and removed over gRPC."""
    address = server.addresses["main.http"]
    response, body = post(address, f"{CONTROL}/register/r//{segment.name}/0/192")
    assert (200, b"") == (response.status, body)
    listed = ask(server, "SharedMemoryControl", b"\x22\x00")
    (region,) = pb.SharedMemoryControlResponse.FromString(
        listed
    ).shared_memory_status.shared_memory_region
    assert ("r", 192) == (region.name, region.byte_size)
    header = (
        'batch_size: 1 input { name: "INPUT0" dims: 16 shared_memory { name: "r" byte_size: 64 } } '
        'input { name: "INPUT1" dims: 16 } '
        'output { name: "OUTPUT0" shared_memory { name: "r" offset: 128 byte_size: 64 } } '
        'output { name: "OUTPUT1" }'
    )
    found = pb.InferResponse.FromString(
        ask(server, "Infer", infer_message("simple", header, PAIR[64:]))
    )
    assert pb.SUCCESS == found.request_status.code
    assert [0, 64] == [len(raw) for raw in found.raw_output]
    assert [64, 64] == [one.raw.batch_byte_size for one in found.meta_data.output]
    assert SUM == segment.read_bytes()[128:]
    forget = pb.SharedMemoryControlRequest()
    forget.unregister.name = "r"
    ask(server, "SharedMemoryControl", forget.SerializeToString())
    after_removal, _ = infer(server, "simple", header, PAIR[64:])
    assert pb.NOT_FOUND == status(after_removal).code


def test_listener_registers_only_allowed_keys(server: Running, segment: Path) -> None:
    """A listener with patterns rejects other segments, which may be those of a server."""
    refused, _ = post(
        server.addresses["named.http"], f"{CONTROL}/register/other//{segment.name}/0/192"
    )
    assert 400 <= refused.status < 500
    assert "does not allow (shared_memory: keys)" in status(refused).msg


@pytest.fixture(scope="module")
def forwarding(server: Running, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A gateway that forwards shared memory to the other one."""
    file = tmp_path_factory.mktemp("forwarding") / "gateway.yaml"
    file.write_text(FORWARDING.replace("ADDRESS", server.addresses["main.http"]))
    with serving(str(file)) as running:
        yield running


@pytest.mark.parametrize(("size", "reason"), [(64, "CUDA"), (63, "63 bytes")])
def test_cuda_handles_are_read_raw_with_any_content_type(
    server: Running, forwarding: Running, size: int, reason: str
) -> None:
    """Clients send the handle's bytes as a form; they are forwarded unchanged."""
    form = {"Content_Type": "application/x-www-form-urlencoded"}
    path = f"{CONTROL}/cudaregister/c/64/0"
    for address in (server.addresses["main.http"], forwarding.addresses["main.http"]):
        response, _ = post(address, path, "", bytes(range(256))[-size:], **form)
        assert (400, pb.INVALID_ARG) == (response.status, status(response).code)
        assert reason in status(response).msg


def test_forwarding_without_an_upstream_is_rejected(server: Running) -> None:
    """A listener that forwards has no upstream with shared memory; each error names the cause."""
    address = server.addresses["passing.http"]
    nobody, _ = post(address, f"{CONTROL}/register/r//seg/0/64")
    assert (400, pb.UNSUPPORTED) == (nobody.status, status(nobody).code)
    header = HEADER.replace("dims: 16 }", 'dims: 16 shared_memory { name: "r" byte_size: 64 } }', 1)
    input_refusal, _ = post(address, "/api/infer/simple", header, PAIR[64:])
    assert "unregistered shared memory region 'r'" in status(input_refusal).msg
    header = HEADER.replace('"OUTPUT0" }', '"OUTPUT0" shared_memory { name: "r" byte_size: 64 } }')
    output_refusal, _ = post(address, "/api/infer/simple", header, PAIR)
    assert (
        "output 'OUTPUT0' refers to the unregistered shared memory region 'r'"
        in status(output_refusal).msg
    )
