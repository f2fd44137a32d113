"""grps through whole gateways: streams, disconnects, slow readers and errors."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cli_kit import Running, serving
from tests.integration.grps_kit import TIMEOUT_S, Channel, post, values
from tests.integration.streaming_models import FLOOD_BYTES
from tests.integration.workers_kit import eventually, read_when_stable

STREAMED = "/grps/v1/infer/predict?streaming=true"

MODELS = ("endless", "silent", "thinking", "flood", "breaks", "mute")
EXAMPLES = ("simple", "speak", "fail", "identity_uint8", "identity_uint16", "identity_bool")
BEHIND = (
    """
version: 1
listeners:
  - {http: "127.0.0.1:0", grpc: "127.0.0.1:0"}
  - {name: native, grpc: "127.0.0.1:0", transport: native}
  - name: own
    http: 127.0.0.1:0
    grpc: 127.0.0.1:0
    protocols: [grps]
    default_model: speak
    options: {grps: {switch: true}}
admin: {address: null, metrics: null}
models:
"""
    + "".join(
        f'  {name}: {{backend: python, options: {{callable: "{module}:{name}"}}}}\n'
        for module, names in (
            ("tests.integration.streaming_models", MODELS),
            ("gateway.backends.examples", EXAMPLES),
        )
        for name in names
    )
    + "lifecycle: {pre_stop: 0s}\n"
)

UPSTREAMS = {"http": "grps+http", "grpc": "grps+grpc", "oip": "oip+grpc"}
FRONT = """
version: 1
listeners: [{{http: "127.0.0.1:0", grpc: "127.0.0.1:0"}}]
admin: {{address: null, metrics: null}}
upstreams:
  http: {{url: "grps+http://{http}"}}
  grpc: {{url: "grps+grpc://{grpc}"}}
  oip: {{url: "oip+grpc://{grpc}"}}
routes:
{routes}
lifecycle: {{pre_stop: 0s}}
"""
ROUTES = "".join(
    f"  - {{match: {{model: {way}.{name}}}, targets: [{{upstream: {way}, model: {name}}}]}}\n"
    for way in UPSTREAMS
    for name in (*MODELS, *EXAMPLES)
)


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A gateway with models of its own."""
    config = tmp_path_factory.mktemp("behind") / "gateway.yaml"
    config.write_text(BEHIND)
    with serving(str(config)) as running:
        yield running


@pytest.fixture(scope="module")
def front(behind: Running, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A gateway that calls the one behind in several protocols."""
    config = tmp_path_factory.mktemp("front") / "gateway.yaml"
    places = {"http": behind.addresses["main.http"], "grpc": behind.addresses["main.grpc"]}
    config.write_text(FRONT.format(routes=ROUTES, **places))
    with serving(str(config)) as running:
        yield running


@pytest.fixture(params=["", *UPSTREAMS])
def place(request: pytest.FixtureRequest) -> tuple[Running, str]:
    """A gateway that has the models or a way to them, and the prefix of their names at it."""
    name = "front" if request.param else "behind"
    return request.getfixturevalue(name), f"{request.param}." if request.param else ""


@contextmanager
def reading(address: str, model: str, text: str, receive_bytes: int = 0) -> Iterator[socket.socket]:
    """Open a connection that has received the head and the first part of a stream."""
    body = json.dumps({"str_data": text, "model": model}).encode()
    head = f"POST {STREAMED} HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
    with socket.socket() as sock:
        if receive_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        sock.settimeout(TIMEOUT_S)
        host, _, port = address.rpartition(":")
        sock.connect((host, int(port)))
        sock.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        read = b""
        while b"SUCCESS" not in read:
            piece = sock.recv(4096)
            assert piece, read
            read += piece
        assert b"Transfer-Encoding: chunked" in read
        yield sock


def until_stopped(path: Path) -> None:
    """Wait until a model was stopped, long before the time of the client is over."""
    eventually(path.exists, TIMEOUT_S / 2)


def test_http_stream_has_a_message_for_each_reply(place: tuple[Running, str]) -> None:
    """The body is concatenated JSON, each with its Status, and ends after the last."""
    running, prefix = place
    body = {"str_data": "hello out there", "model": f"{prefix}speak"}
    status, kind, text = post(running.addresses["main.http"], STREAMED, body)
    assert (200, "application/octet-stream") == (status, kind)
    success = {"code": 200, "msg": "OK", "status": "SUCCESS"}
    assert [
        {"status": success, "str_data": word} for word in ("hello", " out", " there")
    ] == values(text)


def test_grpc_stream_has_a_message_for_each_reply(place: tuple[Running, str]) -> None:
    """Each message of the stream has its Status."""
    running, prefix = place
    with Channel(running.addresses["main.grpc"]) as channel:
        found = list(channel.stream(str_data="hello out there", model=f"{prefix}speak"))
    assert ["hello", " out", " there"] == [message.str_data for message in found]
    assert {(200, "OK", 1)} == {
        (message.status.code, message.status.msg, message.status.status) for message in found
    }


@pytest.mark.parametrize(
    ("model", "tensor"),
    [
        ("identity_uint16", {"dtype": "DT_INT32", "shape": [2], "flat_int32": [0, 65535]}),
        ("identity_bool", {"dtype": "DT_UINT8", "shape": [3], "flat_uint8": [1, 0, 1]}),
    ],
)
def test_missing_datatypes_are_widened_on_every_path(
    place: tuple[Running, str], model: str, tensor: dict[str, Any]
) -> None:
    """The model gets its own datatype, also through a gateway that does not widen."""
    running, prefix = place
    body = {"gtensors": {"tensors": [tensor]}, "model": prefix + model}
    status, _, text = post(running.addresses["main.http"], "/grps/v1/infer/predict", body)
    assert (200, {"name": "OUTPUT0", **tensor}) == (
        status,
        json.loads(text)["gtensors"]["tensors"][0],
    )


@pytest.mark.parametrize("carrier", ["http", "grpc"])
def test_sidecar_forwards_requests_without_a_model(behind: Running, carrier: str) -> None:
    """They reach the default model of the server behind."""
    upstream = f"grps+{carrier}://{behind.addresses[f'own.{carrier}']}"
    flags = ("--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--admin", "off")
    with serving("--upstream", upstream, *flags) as sidecar:
        _, _, text = post(
            sidecar.addresses["main.http"], "/grps/v1/infer/predict", {"str_data": "a b"}
        )
        with Channel(sidecar.addresses["main.grpc"]) as channel:
            words = [response.str_data for response in channel.stream(str_data="a b")]
    assert ("a b", ["a", " b"]) == (json.loads(text)["str_data"], words)


def test_model_without_streams_streams_one_message(place: tuple[Running, str]) -> None:
    """A stream of a model without streams is its single reply."""
    running, prefix = place
    tensor = {"dtype": 1, "shape": [2], "flat_uint8": [1, 2]}
    body = {"gtensors": {"tensors": [tensor]}, "model": f"{prefix}identity_uint8"}
    _, _, text = post(running.addresses["main.http"], STREAMED, body)
    (value,) = values(text)
    assert [1, 2] == value["gtensors"]["tensors"][0]["flat_uint8"]


def test_stream_without_replies_is_empty(place: tuple[Running, str]) -> None:
    """HTTP has status 200 and no body; gRPC has no message."""
    running, prefix = place
    body = {"str_data": "x", "model": f"{prefix}mute"}
    assert (200, b"") == post(running.addresses["main.http"], STREAMED, body)[::2]
    with Channel(running.addresses["main.grpc"]) as channel:
        assert [] == list(channel.stream(str_data="x", model=f"{prefix}mute"))


def test_error_within_a_stream_is_its_last_message(place: tuple[Running, str]) -> None:
    """The message is a FAILURE; HTTP and gRPC have the status of success."""
    running, prefix = place
    words, model = "ValueError: this model breaks on purpose", f"{prefix}breaks"
    body = {"str_data": "x", "model": model}
    status, _, text = post(running.addresses["main.http"], STREAMED, body)
    *responses, failed = values(text)
    assert (200, ["one ", "two"]) == (status, [value["str_data"] for value in responses])
    assert {"status"} == failed.keys()
    assert (500, "FAILURE") == (failed["status"]["code"], failed["status"]["status"])
    assert words in failed["status"]["msg"]
    with Channel(running.addresses["main.grpc"]) as channel:
        *responses, failed = channel.stream(str_data="x", model=model)
    assert ["one ", "two"] == [message.str_data for message in responses]
    assert (500, 2) == (failed.status.code, failed.status.status)
    assert words in failed.status.msg


@pytest.mark.parametrize("model", ["endless", "silent"])
@pytest.mark.parametrize("carrier", ["http", "grpc"])
def test_client_disconnect_stops_a_streaming_model(
    place: tuple[Running, str], model: str, carrier: str, tmp_path: Path
) -> None:
    """The model runs when the first reply arrives, and stops, also behind other gateways."""
    running, prefix = place
    path = tmp_path / "stopped"
    if carrier == "http":
        with reading(running.addresses["main.http"], f"{prefix}{model}", str(path)):
            assert not path.exists()
    else:
        with Channel(running.addresses["main.grpc"]) as channel:
            responses = channel.stream(str_data=str(path), model=f"{prefix}{model}")
            next(responses)
            assert not path.exists()
            responses.cancel()
            until_stopped(path)
    until_stopped(path)


@pytest.mark.parametrize("streaming", [True, False], ids=["stream", "one answer"])
def test_disconnect_before_the_first_reply_stops_the_model(
    place: tuple[Running, str], streaming: bool, tmp_path: Path
) -> None:
    """The model stops although no byte has been written to the client."""
    running, prefix = place
    path = tmp_path / "stopped"
    body = json.dumps({"str_data": str(path), "model": f"{prefix}thinking"}).encode()
    target = STREAMED if streaming else STREAMED.partition("?")[0]
    head = f"POST {target} HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
    host, _, port = running.addresses["main.http"].rpartition(":")
    with socket.create_connection((host, int(port)), TIMEOUT_S) as sock:
        sock.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        eventually(path.with_suffix(".begun").exists, TIMEOUT_S)
    until_stopped(path)


def test_native_transport_streams(behind: Running, tmp_path: Path) -> None:
    """Replies, an error in the middle, and cancellation work on the native transport."""
    path = tmp_path / "stopped"
    with Channel(behind.addresses["native.grpc"]) as channel:
        words = [response.str_data for response in channel.stream(str_data="a b c", model="speak")]
        assert ["a", " b", " c"] == words
        assert [] == list(channel.stream(str_data="x", model="mute"))
        *parts, failed = channel.stream(str_data="x", model="breaks")
        assert (2, 500) == (len(parts), failed.status.code)
        responses = channel.stream(str_data=str(path), model="silent")
        next(responses)
        responses.cancel()
        until_stopped(path)


MOST_MADE = 32  # replies that nobody reads


def test_slow_http_reader_pauses_the_model(place: tuple[Running, str], tmp_path: Path) -> None:
    """Unread replies are not produced, and memory does not grow."""
    running, prefix = place
    path = tmp_path / "made"
    with reading(running.addresses["main.http"], f"{prefix}flood", str(path), 4096):
        before = resident(running)
        made = read_when_stable(path)
        assert resident(running) - before < MOST_MADE * FLOOD_BYTES  # each is held once
    assert made < MOST_MADE


def test_slow_grpc_reader_pauses_the_model(place: tuple[Running, str], tmp_path: Path) -> None:
    """The client's library reads ahead only as far as its window."""
    running, prefix = place
    path = tmp_path / "made"
    with Channel(running.addresses["main.grpc"]) as channel:
        responses = channel.stream(str_data=str(path), model=f"{prefix}flood")
        next(responses)
        before = resident(running)
        made = read_when_stable(path)
        assert resident(running) - before < MOST_MADE * FLOOD_BYTES  # each is held once
        responses.cancel()
    assert made < MOST_MADE


def resident(running: Running) -> int:
    """Return the resident memory of a gateway, in bytes."""
    status = Path(f"/proc/{running.process.pid}/status").read_text()
    return 1024 * int(status.split("VmRSS:")[1].split()[0])
