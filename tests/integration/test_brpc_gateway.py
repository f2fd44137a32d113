"""grps over brpc through whole gateways: frames, HTTP on the same port, a gateway behind another.

The client is `tests/cases/brpc_oracle.py`, which shares nothing with the codec.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path

import grpc
import pytest

from tests.cases import brpc_oracle as oracle
from tests.cases.brpc_oracle import INT32, Client, Question, Tensor
from tests.integration.cli_kit import Running, serving
from tests.integration.workers_kit import eventually

OK = (200, "OK", oracle.SUCCESS)
ROWS = (
    Tensor("INPUT0", INT32, (1, 16), tuple(range(16))),
    Tensor("INPUT1", INT32, (1, 16), (1,) * 16),
)
SUM = Tensor("OUTPUT0", INT32, (1, 16), tuple(range(1, 17)))
DIFFERENCE = Tensor("OUTPUT1", INT32, (1, 16), tuple(range(-1, 15)))
PREDICT = Question("Predict", oracle.message("simple", ROWS))

CONFIG = """
version: 1
listeners:
  - http: 127.0.0.1:0
    grpc: 127.0.0.1:0
    streams:
      - {{protocol: grps, address: "127.0.0.1:0"}}
      - {{protocol: grps, address: "unix:{folder}/brpc.sock", mode: 0600}}
    limits: {{message_bytes: 1MiB}}
admin: {{address: null, metrics: null}}
models:
  simple: {{backend: python, options: {{callable: "gateway.backends.examples:simple"}}}}
  watched: {{backend: python, options: {{callable: "tests.hostile.models:watched", instances: 8}}}}
  held: {{backend: python, options: {{callable: "tests.hostile.models:held", instances: 8}}}}
  fail: {{backend: python, options: {{callable: "gateway.backends.examples:fail"}}}}
lifecycle: {{pre_stop: 0s}}
"""
BRPC = "main.grps.brpc"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A gateway with models of its own."""
    folder = tmp_path_factory.mktemp("brpc")
    config = folder / "gateway.yaml"
    config.write_text(CONFIG.format(folder=folder))
    with serving(str(config)) as running:
        yield running


@pytest.fixture(scope="module")
def front(server: Running) -> Iterator[Running]:
    """A gateway whose upstream is that one, over brpc."""
    flags = ["--http", "127.0.0.1:0", "--grpc", "off", "--admin", "off", "--brpc", "127.0.0.1:0"]
    with serving("--upstream", f"grps+brpc://{server.addresses[BRPC]}", *flags) as running:
        yield running


@pytest.fixture(params=["server", "front"])
def address(request: pytest.FixtureRequest, server: Running, front: Running) -> str:
    """Where brpc is spoken: before models, or before another gateway reached over brpc."""
    return {"server": server, "front": front}[request.param].addresses[BRPC]


def waiting(number: int, wait_ms: int, *, timeout_ms: int = 0, model: str = "watched") -> Question:
    """Return a request to the model "watched", which takes *wait_ms* milliseconds, or to "held"."""
    row = Tensor("INPUT0", INT32, (2,), (wait_ms, number))
    return Question(
        "Predict",
        oracle.message(model, [row]),
        extra={8: timeout_ms} if timeout_ms else {},
    )


def has_logged(running: Running, event: str, number: int) -> bool:
    """Return whether the model "watched" logged an event on standard error."""
    event_text = json.dumps({"event": event, "number": number})
    return any(event_text in line for line in running.log[:])


def until(running: Running, event: str, number: int) -> None:
    """Wait for an event of the model."""
    eventually(lambda: has_logged(running, event, number))


@pytest.mark.parametrize("kind", range(4))
@pytest.mark.parametrize("service", [oracle.FULL_NAME, oracle.SHORT_NAME])
def test_predict_works_in_every_compression(address: str, kind: int, service: str) -> None:
    """None, Snappy, gzip and zlib work under both service names; attachments are ignored."""
    request = Question("Predict", PREDICT.body, service, kind, attachment=b"ignored" * 9)
    with Client(address) as client:
        response = client.ask(request)
    assert (OK, (SUM, DIFFERENCE)) == (response.status, response.message.tensors)


@pytest.mark.parametrize("number", [0, 1, 2**63 - 1, -1, -(2**63), None])
def test_response_has_the_correlation_id_of_its_request(address: str, number: int | None) -> None:
    """Any id is returned as sent; a missing one is 0."""
    with Client(address) as client:
        client.socket.sendall(PREDICT.bytes(number))
        response = client.answer()
    assert response is not None
    assert (number or 0, (SUM, DIFFERENCE)) == (response.number, response.message.tensors)


def test_responses_are_sent_as_they_complete(address: str, server: Running) -> None:
    """A slow request does not delay later requests of its connection."""
    number = 100 + (address == server.addresses[BRPC])
    with Client(address) as client, Client(address) as other:
        slow = client.send(waiting(number, 1, model="held"))
        prompt = [client.send(PREDICT) for _ in range(20)]
        responses = [client.answer() for _ in range(20)]
        assert OK == other.ask(waiting(number, 0, model="held")).status
        responses.append(client.answer())
    numbers = [response.number for response in responses if response is not None]
    assert sorted(prompt) == sorted(numbers[:-1])
    assert slow == numbers[-1]


def test_client_may_reuse_a_correlation_id(server: Running) -> None:
    """Two requests with one id get two responses."""
    with Client(server.addresses[BRPC]) as client:
        for _ in range(2):
            client.send(PREDICT, 7)
        responses = [client.answer() for _ in range(2)]
    assert [7, 7] == [response.number for response in responses if response is not None]


def test_requests_of_the_official_client_succeed(address: str) -> None:
    """The order is that client's; Offline fails unless a listener allows it."""
    with Client(address) as client:
        online = client.ask(Question("Online"))
        live, ready = client.ask(Question("CheckLiveness")), client.ask(Question("CheckReadiness"))
        described = client.ask(Question("ModelMetadata", oracle.message(text="simple")))
        listed = client.ask(Question("ServerMetadata"))
        offline = client.ask(Question("Offline"))
    assert [OK] * 3 == [online.status, live.status, ready.status]
    assert "name: simple" in (described.message.text or "")
    assert "name: simple" in (listed.message.text or "")
    assert oracle.FAILURE == offline.status[2]


@pytest.mark.parametrize(
    ("question", "code", "text"),
    [
        (Question("Predict", service="Other"), 1001, "Fail to find service=Other"),
        (Question("Predict", service="a.Other"), 1002, "Fail to find method=a.Other/Predict"),
        (Question("PredictStreaming"), 1002, "GrpsBrpcService/PredictStreaming"),
        (Question("PredictByHttp"), 1002, "GrpsBrpcService/PredictByHttp"),
        (Question("Predict", b"\xff"), 1003, "CompressType=none, request_size=1"),
        (Question("Predict", compress=9), 1003, "CompressType=unknown"),
    ],
)
def test_call_errors_have_a_code_and_no_message(
    address: str, question: Question, code: int, text: str
) -> None:
    """A call that reaches no service gets an error code; the connection stays usable."""
    with Client(address) as client:
        response = client.ask(question)
        after = client.ask(PREDICT)
    assert (code, 0, OK) == (response.code, response.size, after.status)
    assert text in response.text


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (oracle.message("nobody", ROWS), 404),
        (oracle.message("simple", ROWS[:1]), 400),
        (oracle.message("simple"), 400),
        (oracle.message("fail", [Tensor("INPUT0", INT32, (1,), (0,))]), 500),
    ],
)
def test_service_failures_are_in_the_status_message(address: str, body: bytes, code: int) -> None:
    """The call succeeds, and the Status of its message has the failure."""
    with Client(address) as client:
        response = client.ask(Question("Predict", body))
        after = client.ask(PREDICT)
    assert (code, oracle.FAILURE) == (response.status[0], response.status[2])
    assert response.status[1]
    assert OK == after.status


def test_frame_over_the_limit_closes_the_connection(server: Running) -> None:
    """As in brpc, no error is sent; the frame before it gets its response."""
    with Client(server.addresses[BRPC]) as client:
        client.socket.sendall(PREDICT.bytes(1) + b"PRPC" + (1 << 24).to_bytes(4, "big") + bytes(4))
        first, second = client.answer(), client.answer()
    assert first is not None
    assert (1, None) == (first.number, second)


def test_serves_a_unix_socket(server: Running) -> None:
    """A frame on a unix socket gets its response."""
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(60)
    with closing(sock):
        sock.connect(server.addresses["main.grps.unix"].removeprefix("unix:"))
        sock.sendall(PREDICT.bytes(3))
        data = b""
        while len(data) < 12 or len(data) < 12 + int.from_bytes(data[4:8], "big"):
            data += sock.recv(65536)
    assert b"OUTPUT1" in data


# -- HTTP on the same port


def request_http(
    address: str, method: str, path: str, body: bytes = b"", kind: str = ""
) -> HTTPResponse:
    """Send one request over HTTP."""
    with closing(HTTPConnection(address, timeout=60)) as connection:
        connection.request(method, path, body, {"Content-Type": kind} if kind else {})
        response = connection.getresponse()
        response.body = response.read()  # type: ignore[attr-defined]  # read before it is closed
        return response


@pytest.mark.parametrize("service", [oracle.SHORT_NAME, oracle.FULL_NAME])
def test_http_json_on_the_brpc_port(address: str, service: str) -> None:
    """A JSON request gets brpc's compact JSON, with enums by name."""
    rows = [
        {"name": row.name, "dtype": "DT_INT32", "shape": row.shape, "flat_int32": row.values}
        for row in ROWS
    ]
    body = json.dumps({"model": "simple", "gtensors": {"tensors": rows}}).encode()
    response = request_http(address, "POST", f"/{service}/Predict", body, "application/json")
    document = json.loads(response.body)  # type: ignore[attr-defined]  # of `request_http`
    assert (200, "SUCCESS") == (response.status, document["status"]["status"])
    assert list(SUM.values) == document["gtensors"]["tensors"][0]["flat_int32"]


def test_status_page_is_at_the_root_of_the_brpc_port(address: str) -> None:
    """As on a real server, the page is at `/`, and other paths are 404."""
    page = request_http(address, "GET", "/")
    assert (200, "text/html; charset=utf-8") == (page.status, page.headers["Content-Type"])
    assert 404 == request_http(address, "GET", "/other").status


def test_http_protobuf_on_the_brpc_port(address: str) -> None:
    """A protobuf request gets a protobuf response."""
    kind = "application/x-protobuf"
    response = request_http(address, "POST", "/GrpsBrpcService/Predict", PREDICT.body, kind)
    found = oracle.read_message(response.body)  # type: ignore[attr-defined]  # of `request_http`
    assert (200, (SUM, DIFFERENCE)) == (response.status, found.tensors)


def test_http_get_sends_an_empty_message(address: str) -> None:
    """GET suffices for a method that needs no message."""
    response = request_http(address, "GET", "/GrpsBrpcService/CheckLiveness")
    document = json.loads(response.body)  # type: ignore[attr-defined]  # of `request_http`
    assert {"status": {"code": 200, "msg": "OK", "status": "SUCCESS"}} == document


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("POST", "/GrpsBrpcService/Nope", b"{}", 404, "1002"),
        ("POST", "/GrpsBrpcService/Predict", b"{", 400, "1003"),
        ("POST", "/grps/v1/infer/predict", b"{}", 404, None),
        ("GET", "/v2/health/ready", b"", 404, None),
    ],
)
def test_rejected_http_has_a_brpc_error_code(
    address: str, method: str, path: str, body: bytes, status: int, code: str | None
) -> None:
    """Unknown services, methods and bodies are rejected in brpc's form."""
    response = request_http(address, method, path, body, "application/json")
    assert (status, code) == (response.status, response.headers["x-bd-error-code"])


def test_grpc_on_the_brpc_port(address: str) -> None:
    """The brpc service is served over gRPC; the gRPC service of grps is UNIMPLEMENTED."""
    with grpc.insecure_channel(address) as channel:
        ask = channel.unary_unary(f"/{oracle.FULL_NAME}/Predict")
        found = oracle.read_message(ask(PREDICT.body, timeout=60))
        with pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary("/grps.protos.v1.GrpsService/Predict")(PREDICT.body, timeout=60)
    assert (OK, (SUM, DIFFERENCE)) == (found.status, found.tensors)
    assert grpc.StatusCode.UNIMPLEMENTED is refused.value.code()


# -- who leaves, who hurries


@pytest.mark.parametrize("through", ["server", "front"])
def test_client_disconnect_cancels_the_model(server: Running, front: Running, through: str) -> None:
    """The model is cancelled long before its end, also behind another gateway."""
    address = {"server": server, "front": front}[through].addresses[BRPC]
    number = 100 + (through == "front")
    client = Client(address)
    client.send(waiting(number, 120_000))
    until(server, "begun", number)
    client.socket.close()
    until(server, "left", number)


def test_half_closed_connection_gets_its_response(address: str) -> None:
    """A client that shuts down its sending side still gets a late response."""
    with Client(address) as client:
        sent = client.send(waiting(2, 150))
        client.socket.shutdown(socket.SHUT_WR)
        response, end = client.answer(), client.answer()
    assert response is not None
    assert (sent, OK, None) == (response.number, response.status, end)


def test_timeout_ms_cancels_the_call(address: str, server: Running) -> None:
    """`timeout_ms` is a deadline: the model is cancelled, and the caller gets 504."""
    number = 200 + (address == server.addresses[BRPC])
    with Client(address) as client:
        response = client.ask(waiting(number, 120_000, timeout_ms=2000))
        after = client.ask(PREDICT)
    until(server, "left", number)
    assert (504, OK) == (response.status[0], after.status)


def test_remaining_deadline_is_forwarded_as_timeout_ms(server: Running) -> None:
    """The upstream gets the remaining time of the deadline, never more than the caller set."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(60)
        port = listening.getsockname()[1]
        flags = ["--http", "off", "--grpc", "off", "--admin", "off", "--brpc", "127.0.0.1:0"]
        with (
            serving("--upstream", f"grps+brpc://127.0.0.1:{port}", *flags) as running,
            Client(running.addresses[BRPC]) as client,
        ):
            sent = client.send(Question("Predict", PREDICT.body, extra={8: 3000}))
            connection, meta = _predict_received(listening)
            with closing(connection):  # which never answers
                response = client.answer()
    timeout_ms = oracle.fields(meta[1][-1])[8][-1]
    assert 0 < timeout_ms <= 3000
    assert response is not None
    assert (sent, 504) == (response.number, response.status[0])
    assert server.process.poll() is None


def _predict_received(listening: socket.socket) -> tuple[socket.socket, oracle.Fields]:
    """Return the connection and the metadata of the first Predict that comes; probes are closed."""
    while True:
        connection, _ = listening.accept()
        connection.settimeout(60)
        data = b""
        while len(data) < 12 or len(data) < 12 + int.from_bytes(data[4:8], "big"):
            piece = connection.recv(65536)
            if not piece:
                break
            data += piece
        meta = oracle.fields(data[12 : 12 + int.from_bytes(data[8:12], "big")])
        if oracle.fields(meta[1][-1])[2][-1] == b"Predict":
            return connection, meta
        connection.close()


def test_stop_finishes_calls_in_flight(tmp_path: Path) -> None:
    """A call in flight gets its response; a new one is rejected with ELOGOFF."""
    config = tmp_path / "gateway.yaml"
    config.write_text(CONFIG.format(folder=tmp_path))
    with serving(str(config)) as running, Client(running.addresses[BRPC]) as client:
        sent = client.send(waiting(1, 4000))
        until(running, "begun", 1)
        running.process.terminate()
        late = client.send(PREDICT)
        while (refused := client.answer()) is not None and refused.code == 0:
            late = client.send(PREDICT)  # clients of the last moment are still served
        response, end = client.answer(), client.answer()
        assert 0 == running.process.wait(60)
    assert refused is not None
    assert response is not None
    assert (late, 2003, sent, OK, None) == (
        refused.number,
        refused.code,
        response.number,
        response.status,
        end,
    )
