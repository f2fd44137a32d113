"""Requests that hurt real servers, sent to them directly and then through the gateway.

Directly, each request ends its server, hangs it, or takes what it should not have. Through the
gateway, over either carrier to the server, the request is answered with an error. The server then
answers as before, and a bystander who asks all the time sees nothing of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import random
import re
import socket
import struct
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import grpc
import grpc.aio
import pytest

from gateway.app.weaknesses import WEAKNESSES
from gateway.schema import open_inference_pb2 as pb
from tests.integration.cli_kit import Running
from tests.interop.gateways import serving
from tests.interop.sacrifice import (
    INFER,
    INTERVAL_S,
    Bystander,
    Innocent,
    Sacrifice,
    bystander,
    channel,
    infer_method,
    post,
    stream_method,
)
from tests.interop.servers.mlserver import start as mlserver
from tests.interop.servers.process import RunningServer
from tests.interop.servers.triton import start as triton

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

CARRIERS = ("grpc", "http")
FREE_PORTS = ("--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0")
MOST_WAIT_S = 1.0
"""A bystander never waits longer than this for an answer."""

Test = TypeVar("Test", bound=Callable[..., object])

Send = Callable[[str, str], str]
"""Sends a request, given "host:port" for HTTP and gRPC; returns the status or the code."""

INNOCENT = Innocent("identity_fp32", "FP32", (1, 4))
FP32 = "/v2/models/identity_fp32/infer"
BROKEN = "broken off"


@pytest.fixture(scope="module")
def sacrifice(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sacrifice]:
    """Run a Triton that may be killed."""
    folder = tmp_path_factory.mktemp("sacrifice")
    server = Sacrifice("triton", triton.prepare_sacrificial, folder, INNOCENT)
    yield server
    server.close()


@pytest.fixture(scope="module")
def gateways(sacrifice: Sacrifice) -> Iterator[Mapping[str, Running]]:
    """Run a gateway with default settings for each carrier to the server."""
    server = sacrifice.server
    with (
        serving("--upstream", f"oip+grpc://{server.grpc_address}", *FREE_PORTS) as by_grpc,
        serving("--upstream", f"oip+http://{server.http_address}", *FREE_PORTS) as by_http,
    ):
        yield {"grpc": by_grpc, "http": by_http}


def row(name: str) -> Callable[[Test], Test]:
    """Say which row of the table of weaknesses a test is for."""
    assert name in {weakness.name for weakness in WEAKNESSES}
    return lambda test: test


@dataclass(frozen=True)
class Attack:
    """A request that hurts a server.

    Attributes:
        name: Of the test.
        sends: Ways to send it. Directly the first one is tried, through the gateway all.
        answers: What the gateway may answer.
    """

    name: str
    sends: tuple[Send, ...]
    answers: frozenset[str]


def json_body(datatype: str, shape: list[int], data: list[Any], **members: Any) -> bytes:
    """Return an inference request with one input, INPUT0."""
    tensor = {"name": "INPUT0", "datatype": datatype, "shape": shape, "data": data}
    return json.dumps({"inputs": [tensor], **members}).encode()


def by_http(path: str, body: bytes, *headers: tuple[str, str]) -> Send:
    """Return what POSTs *body*."""

    def send(http_address: str, _grpc_address: str) -> str:
        try:
            return str(post(http_address, path, body, headers=dict(headers))[0])
        except (OSError, http.client.HTTPException):
            return BROKEN

    return send


def _each(path: str, bodies: Sequence[bytes], timeout_s: float = 3.0) -> Send:
    """Return what POSTs *bodies* one after the other, until one has no response."""

    def send(http_address: str, _grpc_address: str) -> str:
        found = BROKEN
        for body in bodies:
            try:
                found = str(post(http_address, path, body, timeout_s)[0])
            except (OSError, http.client.HTTPException):
                return BROKEN
        return found

    return send


def by_grpc(request: pb.ModelInferRequest, *metadata: tuple[str, str]) -> Send:
    """Return what sends *request* as a unary call."""

    def send(_http_address: str, grpc_address: str) -> str:
        with channel(grpc_address) as opened:
            try:
                infer_method(opened)(request, timeout=20, metadata=metadata)
            except grpc.RpcError as error:
                return _code(error)
        return "OK"

    return send


def by_stream(request: pb.ModelInferRequest, *metadata: tuple[str, str]) -> Send:
    """Return what sends *request* on a stream, and returns its status or what its error says."""

    def send(_http_address: str, grpc_address: str) -> str:
        with channel(grpc_address) as opened:
            call = stream_method(opened)(iter([request]), timeout=20, metadata=metadata)
            try:
                errors = [answer.error_message for answer in call]
            except grpc.RpcError as error:
                return _code(error)
        return "OK" if not any(errors) else "error in the stream"

    return send


def _code(error: grpc.RpcError) -> str:
    assert isinstance(error, grpc.Call)
    return str(error.code().name)


def infer_request(
    model: str, datatype: str, shape: tuple[int, ...], raw: bytes, name: str = "INPUT0"
) -> pb.ModelInferRequest:
    """Return a request with one input."""
    request = pb.ModelInferRequest(model_name=model)
    request.inputs.add(name=name, datatype=datatype, shape=shape)
    request.raw_input_contents.append(raw)
    return request


def _chunks(http_address: str, _grpc_address: str) -> str:
    """Send a body in 1,000,000 chunks of one byte each."""
    host, _, port = http_address.rpartition(":")
    head = f"POST {FP32} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    try:
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            connection.sendall(head.encode())
            try:
                for _ in range(100):
                    connection.sendall(b"1\r\nx\r\n" * 10_000)
                connection.sendall(b"0\r\n\r\n")
            except OSError:
                pass  # it was answered before it was read whole
            found = connection.recv(64)
    except OSError:
        return BROKEN
    return found.split(b" ")[1].decode() if found else BROKEN


def _text_tensor(model: str) -> pb.ModelInferRequest:
    text = b"\x01\0\0\0a"
    return infer_request(model, "BYTES", (1, 1), text)


def _text_classes(count: int = 1) -> pb.ModelInferRequest:
    """Return a request for classes of an output of text."""
    request = _text_tensor("identity_bytes")
    request.outputs.add(name="OUTPUT0").parameters["classification"].int64_param = count
    return request


_TEXT_CLASSES = {"name": "OUTPUT0", "parameters": {"classification": 1}}


def _with_sequence(model: str, sequence_id: int | str) -> pb.ModelInferRequest:
    """Return the first request of a sequence."""
    request = infer_request(model, "INT32", (1, 1), bytes(4), name="INPUT")
    if isinstance(sequence_id, str):
        request.parameters["sequence_id"].string_param = sequence_id
    else:
        request.parameters["sequence_id"].int64_param = sequence_id
    request.parameters["sequence_start"].bool_param = True
    return request


def _sequence_body(sequence_id: int | str) -> bytes:
    tensor = {"name": "INPUT", "datatype": "INT32", "shape": [1, 1], "data": [1]}
    parameters = {"sequence_id": sequence_id, "sequence_start": True}
    return json.dumps({"inputs": [tensor], "parameters": parameters}).encode()


KNOWN: tuple[Attack, ...] = (
    Attack(
        "classes_of_text",
        (
            by_http(
                "/v2/models/identity_bytes/infer",
                json_body("BYTES", [1, 1], ["a"], outputs=[_TEXT_CLASSES]),
            ),
            by_grpc(_text_classes()),
            by_stream(_text_classes()),
        ),
        frozenset({"400", "INVALID_ARGUMENT", "error in the stream"}),
    ),
    Attack(
        "text_sequence_id",
        (
            _each(
                "/v2/models/sequence_number/infer",
                [_sequence_body("x" * 20 + str(number)) for number in range(40)],
            ),
            by_grpc(_with_sequence("sequence_number", "x" * 20)),
            by_stream(_with_sequence("sequence_number", "x" * 20)),
        ),
        frozenset({"400", "INVALID_ARGUMENT", "error in the stream"}),
    ),
    Attack(
        "number_as_text_sequence_id",
        (
            _each(
                "/v2/models/sequence_text/infer",
                [_sequence_body(number) for number in range(1, 41)],
            ),
            by_grpc(_with_sequence("sequence_text", 7)),
            by_stream(_with_sequence("sequence_text", 7)),
        ),
        frozenset({"400", "INVALID_ARGUMENT", "error in the stream"}),
    ),
    Attack(
        "nested_json",
        (
            by_http(FP32, b"[" * 300_000 + b"]" * 300_000),
            by_http("/v2/repository/index", b"[" * 300_000 + b"]" * 300_000),
            by_http("/v2/models/identity_fp32/generate", b"[" * 300_000 + b"]" * 300_000),
        ),
        frozenset({"400", "413", "501"}),
    ),
    Attack("many_chunks", (_chunks,), frozenset({"413"})),
    Attack(
        "infinite_quality",
        (
            by_http(
                FP32, json_body("FP32", [1, 4], [1, 2, 3, 4]), ("Accept-Encoding", "gzip;q=1e400")
            ),
        ),
        frozenset({"200"}),
    ),
    Attack(
        "huge_shape",
        (
            by_http(FP32, json_body("FP32", [2**62, 4], [1, 2, 3, 4])),
            by_http(FP32, json_body("FP32", [2**63 - 1], [1, 2, 3, 4])),
            by_http(FP32, json_body("FP32", [2**40], [1, 2, 3, 4])),
            by_grpc(infer_request("identity_fp32", "FP32", (2**62, 4), bytes(16))),
        ),
        frozenset({"413", "RESOURCE_EXHAUSTED"}),
    ),
)


@pytest.mark.parametrize("attack", KNOWN, ids=lambda attack: attack.name)
def test_triton(attack: Attack, sacrifice: Sacrifice, gateways: Mapping[str, Running]) -> None:
    """What ends Triton ends at the gateway."""
    sacrifice.revive()
    found = attack.sends[0](sacrifice.server.http_address, sacrifice.server.grpc_address)
    assert found == BROKEN or sacrifice.is_hurt_soon(), "this Triton is not hurt: check its version"
    sacrifice.restart()
    for gateway in gateways.values():
        _await_ready(gateway)
        http_address, grpc_address = addresses(gateway)
        with bystander(INNOCENT.by_http, http_address) as seen:
            for send in attack.sends:
                assert send(http_address, grpc_address) in attack.answers
        unharmed(sacrifice, gateway, seen)


def addresses(gateway: Running) -> tuple[str, str]:
    """Return where a gateway listens for HTTP and gRPC."""
    return gateway.addresses["main.http"], gateway.addresses["main.grpc"]


def unharmed(sacrifice: Sacrifice, gateway: Running, seen: Bystander) -> None:
    """Check that nobody noticed, and that innocent requests are answered right."""
    assert not seen.failures
    assert seen.worst_s < MOST_WAIT_S
    http_address, grpc_address = addresses(gateway)
    INNOCENT.by_http(http_address)
    INNOCENT.by_grpc(grpc_address)
    assert not sacrifice.is_hurt()


def _await_ready(gateway: Running) -> None:
    """Wait until the gateway reaches the server again."""
    address = gateway.addresses["main.http"]
    for _ in range(100):
        try:
            INNOCENT.by_http(address)
        except (AssertionError, OSError, http.client.HTTPException):
            continue
        return
    raise AssertionError("the gateway does not reach the server again")


OPEN = """
version: 1
listeners:
  - http: "127.0.0.1:0"
    grpc: "127.0.0.1:0"
    shared_memory: {{mode: forward, keys: "shield-*"}}
    options: {{oip: {{model_control: true, opaque: true{options}}}}}
admin: {{address: null, metrics: null}}
upstreams: {{triton: {{url: "oip+{carrier}://{address}"}}}}
lifecycle: {{pre_stop: 0s}}
"""
LOAD = "/v2/repository/models/{}/load"
REGISTER = "/v2/systemsharedmemory/region/{}/register"
BIG_BYTES = 10 << 20
SEGMENTS = Path("/dev/shm")  # noqa: S108  # where Linux keeps POSIX segments


@contextmanager
def opened(server: RunningServer, carrier: str, folder: Path, options: str = "") -> Iterator[str]:
    """Run a gateway that allows model control and shared memory; yield its HTTP address."""
    address = server.http_address if carrier == "http" else server.grpc_address
    file = folder / f"{carrier}.yaml"
    file.write_text(OPEN.format(carrier=carrier, address=address, options=options))
    with serving(str(file)) as gateway:
        yield gateway.addresses["main.http"]


@contextmanager
def segment(name: str, content: bytes) -> Iterator[Path]:
    """Make a POSIX segment."""
    path = SEGMENTS / name
    path.write_bytes(content)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def _own_segments(server: RunningServer) -> list[str]:
    """Return the names of the segments that Triton shares with its own processes."""
    port = server.http_address.rpartition(":")[2]
    return [path.name for path in SEGMENTS.glob(f"interop{port}*")]


@row("names_of_segments")
def test_names_of_segments_stay_secret(
    sacrifice: Sacrifice, gateways: Mapping[str, Running]
) -> None:
    """Directly an error has the name of a segment; through the gateway no error has it."""
    sacrifice.revive()
    data = bytes(BIG_BYTES)
    request = infer_request("identity_fp32", "FP32", (1, BIG_BYTES // 4), data)
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1, BIG_BYTES // 4]}
    head = json.dumps({"inputs": [{**tensor, "parameters": {"binary_data_size": BIG_BYTES}}]})
    length = {"Inference-Header-Content-Length": str(len(head))}

    def errors(http_address: str, grpc_address: str) -> list[str]:
        _, text = post(http_address, FP32, head.encode() + data, headers=length)
        with channel(grpc_address) as opened_channel:
            with pytest.raises(grpc.RpcError) as raised:
                infer_method(opened_channel)(request, timeout=20)
            assert isinstance(raised.value, grpc.Call)
            replies = stream_method(opened_channel)(iter([request]), timeout=20)
            return [text.decode(), str(raised.value.details()), next(replies).error_message]

    server = sacrifice.server
    for text in errors(server.http_address, server.grpc_address):
        assert any(name in text for name in _own_segments(server))
    for gateway in gateways.values():
        _await_ready(gateway)
        for text in errors(*addresses(gateway)):
            assert "for key '...' to" in text
            assert not any(name in text for name in _own_segments(server))
        logged = [line for line in gateway.log if "names of segments withheld" in line]
        assert len(logged) == 3
        assert all("request_id" in line for line in logged)


@row("configuration_is_code")
@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_configuration_is_code(sacrifice: Sacrifice, carrier: str, tmp_path: Path) -> None:
    """Directly a configuration runs a command; through the gateway it is refused."""
    sacrifice.revive()

    def body(name: str) -> bytes:
        config = {
            "backend": "python",
            "default_model_filename": f"m$(touch {tmp_path / name}).py",
            "input": [{"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [-1]}],
            "output": [{"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [-1]}],
        }
        return json.dumps({"parameters": {"config": json.dumps(config)}}).encode()

    load = LOAD.format("fail_always")
    with contextlib.suppress(TimeoutError):
        post(sacrifice.server.http_address, load, body("direct"), timeout_s=5)
    assert (tmp_path / "direct").exists()
    sacrifice.restart()
    with opened(sacrifice.server, carrier, tmp_path) as address:
        assert post(address, load, body("closed"))[0] == 501
        assert post(address, "/v2/repository/r/models/fail_always/load", body("closed"))[0] == 501
        assert post(address, LOAD.format("m$(id)"), b"{}")[0] == 400
        assert post(address, LOAD.format("simple"), b"{}")[0] == 200
    with opened(sacrifice.server, carrier, tmp_path, ", model_config: limited") as address:
        assert post(address, load, body("limited"))[0] == 400
        config = json.dumps({"parameters": {"config": '{"max_batch_size": 4}'}}).encode()
        assert post(address, LOAD.format("simple"), config)[0] == 200
    assert not (tmp_path / "closed").exists()
    assert not (tmp_path / "limited").exists()
    assert not sacrifice.is_hurt()


@row("shared_memory_regions")
@pytest.mark.parametrize("carrier", CARRIERS)
def test_regions_of_shared_memory(sacrifice: Sacrifice, carrier: str, tmp_path: Path) -> None:
    """Directly clients register what they like; through the gateway what is theirs, and right."""
    sacrifice.restart()
    values = struct.pack("<4096f", *range(4096))

    def register(address: str, name: str, key: str, offset: int, size: int) -> int:
        region = {"key": key, "offset": offset, "byte_size": size}
        return post(address, REGISTER.format(name), json.dumps(region).encode())[0]

    def first(address: str, region: str) -> float:
        place = {"shared_memory_region": region, "shared_memory_byte_size": 8192}
        tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 2048], "parameters": place}
        status, text = post(address, FP32, json.dumps({"inputs": [tensor]}).encode())
        assert status == 200, text
        return float(json.loads(text)["outputs"][0]["data"][0])

    with segment("shield-a", values), segment("other", values):
        own = _own_segments(sacrifice.server)[0]
        direct = sacrifice.server.http_address
        assert register(direct, "own", f"/{own}", 0, 64) == 200
        assert register(direct, "moved", "/shield-a", 8192, 8192) == 200
        assert first(direct, "moved") != 2048
        sacrifice.restart()
        own = _own_segments(sacrifice.server)[0]
        with opened(sacrifice.server, carrier, tmp_path) as address:
            spellings = (f"/{own}", own, f"//{own}", f"/./{own}", "/triton_python_backend_shm_x")
            for key in (*spellings, "/other", "/shield-none", "/shield-a/../other"):
                assert register(address, "wrong", key, 0, 64) in {400, 403}
            assert register(address, "wrong", "/shield-a", 1 << 62, 1 << 62) == 400
            assert register(address, "wrong", "/shield-a", 8193, 8192) == 400
            assert register(address, "moved", "/shield-a", 8192, 8192) == 200
            assert first(address, "moved") == 2048
            assert register(address, "plain", "shield-a", 0, 8192) == 200
            assert first(address, "plain") == 0
    assert not sacrifice.is_hurt()


def _storm(address: str, count: int, at_once: int, *, deadlines: bool) -> float:
    """Cancel calls, or let their deadlines pass; return the longest wait for an end, in seconds."""
    request = infer_request("identity_fp32", "FP32", (1, 4), bytes(16))
    randomly = random.Random(1)  # noqa: S311  # delays of a test

    async def run() -> float:
        left, worst = count, 0.0
        async with grpc.aio.insecure_channel(address) as connected:
            method = connected.unary_unary(
                INFER, request_serializer=pb.ModelInferRequest.SerializeToString
            )

            async def one() -> None:
                nonlocal left, worst
                while left > 0:
                    left -= 1
                    delay = randomly.random() * 0.004
                    end = time.monotonic() + delay
                    with contextlib.suppress(grpc.RpcError, asyncio.CancelledError):
                        if deadlines:
                            await method(request, timeout=delay)
                        else:
                            call = method(request, timeout=20)
                            await asyncio.sleep(delay)
                            call.cancel()
                            await call
                    worst = max(worst, time.monotonic() - end)

            await asyncio.gather(*(one() for _ in range(at_once)))
        return worst

    return asyncio.run(run())


@row("cancelled_calls")
@pytest.mark.parametrize("at_once", [4, 32])
def test_cancelled_calls(
    sacrifice: Sacrifice, gateways: Mapping[str, Running], at_once: int
) -> None:
    """Directly, calls that are cancelled end Triton; through the gateway they end by themselves."""
    sacrifice.revive()
    for _ in range(20):
        _storm(sacrifice.server.grpc_address, 2000, 4, deadlines=False)
        if sacrifice.is_hurt():
            break
    assert sacrifice.is_hurt_soon(), "this Triton is not hurt: check its version"
    sacrifice.restart()
    gateway = gateways["grpc"]
    _await_ready(gateway)
    assert any("server 7368, 8034" in line for line in gateway.log)
    http_address, grpc_address = addresses(gateway)
    with bystander(INNOCENT.by_http, http_address) as seen:
        for deadlines in (False, True):
            assert _storm(grpc_address, 5000, at_once, deadlines=deadlines) < MOST_WAIT_S
    unharmed(sacrifice, gateway, seen)
    page = urllib.request.urlopen(f"http://{gateway.addresses['admin']}/metrics").read().decode()
    assert re.search(r"^gateway_upstream_withheld_cancellations_total\S* [1-9]", page, re.MULTILINE)


@pytest.fixture(scope="module")
def mlserver_sacrifice(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sacrifice]:
    """Run an MLServer that may be hurt."""
    folder = tmp_path_factory.mktemp("mlserver-sacrifice")
    server = Sacrifice("mlserver", mlserver.prepare_sacrificial, folder, INNOCENT)
    yield server
    server.close()


def _worst_wait(sacrifice: Sacrifice, address: str, send: Callable[[], object]) -> float:
    """Return the longest wait of a bystander, in seconds, while something is sent."""
    with bystander(sacrifice.innocent.by_http, address) as seen:
        time.sleep(3 * INTERVAL_S)  # he has asked before
        send()
    return seen.worst_s


@row("wide_text")
def test_wide_text(mlserver_sacrifice: Sacrifice) -> None:
    """Directly one long text among many takes a GiB; through the gateway it is refused."""
    server = mlserver_sacrifice.server
    texts = ["a"] * 999 + ["b" * 400_000]
    tensor = {"name": "X", "datatype": "BYTES", "shape": [1000], "data": texts}
    body = json.dumps({"inputs": [tensor]}).encode()
    path = "/v2/models/count_text/infer"
    before = mlserver_sacrifice.peak_bytes()
    post(server.http_address, path, body, timeout_s=60)
    assert mlserver_sacrifice.peak_bytes() - before > 500 << 20
    mlserver_sacrifice.restart()
    server = mlserver_sacrifice.server
    before = mlserver_sacrifice.peak_bytes()
    upstream = f"oip+http://{server.http_address}"
    with serving("--upstream", upstream, *FREE_PORTS) as gateway:
        address = gateway.addresses["main.http"]
        statuses: list[int] = []
        worst_s = _worst_wait(
            mlserver_sacrifice, address, lambda: statuses.append(post(address, path, body)[0])
        )
        assert [413] == statuses
        assert worst_s < MOST_WAIT_S
    assert mlserver_sacrifice.peak_bytes() - before < 50 << 20
    assert not mlserver_sacrifice.is_hurt()


@row("numbers_as_json")
def test_numbers_as_json(mlserver_sacrifice: Sacrifice) -> None:
    """Directly 15,000,000 numbers occupy MLServer; through the gateway they are refused."""
    mlserver_sacrifice.revive()
    server = mlserver_sacrifice.server
    path = "/v2/models/sum_and_empty/infer"
    count = 15_000_000
    tensor = {"name": "X", "datatype": "FP32", "shape": [count]}
    numbers = b",".join([b"0.12345678"] * count)
    direct = json.dumps({"inputs": [tensor]}).encode()[:-3] + b',"data":[' + numbers + b"]}]}"
    worst_s = _worst_wait(
        mlserver_sacrifice,
        server.http_address,
        lambda: post(server.http_address, path, direct, timeout_s=60),
    )
    assert worst_s > MOST_WAIT_S
    mlserver_sacrifice.restart()
    size = {"binary_data_size": 4 * count}
    head = json.dumps({"inputs": [{**tensor, "parameters": size}]}).encode()
    length = {"Inference-Header-Content-Length": str(len(head))}
    upstream = f"oip+http://{mlserver_sacrifice.server.http_address}"
    with serving("--upstream", upstream, *FREE_PORTS) as gateway:
        address = gateway.addresses["main.http"]
        statuses: list[int] = []
        worst_s = _worst_wait(
            mlserver_sacrifice,
            address,
            lambda: statuses.append(
                post(address, path, head + bytes(4 * count), headers=length)[0]
            ),
        )
        assert [413] == statuses
        assert worst_s < MOST_WAIT_S
    assert not mlserver_sacrifice.is_hurt()
