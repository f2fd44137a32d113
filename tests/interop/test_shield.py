"""Requests that hurt Triton, sent to it directly and then through the gateway."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest

from gateway.schema import open_inference_pb2 as pb
from tests.integration.cli_kit import Running
from tests.integration.workers_kit import eventually
from tests.interop.attacks import (
    BROKEN,
    FP32,
    INNOCENT,
    IS_HURT_FIRST,
    Attack,
    addresses,
    await_ready,
    by_grpc,
    by_http,
    by_stream,
    each,
    infer_request,
    json_body,
    row,
    unharmed,
)
from tests.interop.gateways import CARRIERS, serving
from tests.interop.sacrifice import (
    Sacrifice,
    bystander,
    channel,
    infer_method,
    post,
    stream_method,
)
from tests.interop.servers.process import RunningServer

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]


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


def _empty_classes() -> pb.ModelInferRequest:
    """Return a request for classes of an output without elements."""
    request = infer_request("identity_fp32", "FP32", (0, 4), b"")
    request.outputs.add(name="OUTPUT0").parameters["classification"].int64_param = 1
    return request


_CLASSES = {"name": "OUTPUT0", "parameters": {"classification": 1}}


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
                json_body("BYTES", [1, 1], ["a"], outputs=[_CLASSES]),
            ),
            by_grpc(_text_classes()),
            by_stream(_text_classes()),
        ),
        frozenset({"400", "INVALID_ARGUMENT", "error in the stream"}),
    ),
    Attack(
        "classes_of_nothing",
        (
            by_http(FP32, json_body("FP32", [0, 4], [], outputs=[_CLASSES])),
            by_grpc(_empty_classes()),
            by_stream(_empty_classes()),
        ),
        frozenset({"200", "OK"}),
    ),
    Attack(
        "text_sequence_id",
        (
            each(
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
            each(
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
def test_attacks_on_triton_end_at_the_gateway(
    attack: Attack, sacrifice: Sacrifice, gateways: Mapping[str, Running]
) -> None:
    """Sent directly, each request ends Triton; the gateway rejects it."""
    sacrifice.revive()
    if IS_HURT_FIRST:
        found = attack.sends[0](sacrifice.server.http_address, sacrifice.server.grpc_address)
        assert found == BROKEN or sacrifice.is_hurt_soon(), (
            "this Triton is not hurt: check its version"
        )
        sacrifice.restart()
    for gateway in gateways.values():
        await_ready(gateway)
        http_address, grpc_address = addresses(gateway)
        processes = gateway.process.pid, sacrifice.server.process.pid
        with bystander(INNOCENT.by_http, http_address, *processes) as seen:
            for send in attack.sends:
                assert send(http_address, grpc_address) in attack.answers
        unharmed(sacrifice, gateway, seen)


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
    address = server.address(carrier)
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
    """Triton's errors name a segment; the errors of the gateway do not."""
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
        await_ready(gateway)
        for text in errors(*addresses(gateway)):
            assert "for key '...' to" in text
            assert not any(name in text for name in _own_segments(server))
        logged = gateway.log
        eventually(lambda logged=logged: len(_withheld(logged)) >= 3)  # type: ignore[misc]
        assert all("request_id" in line for line in _withheld(logged))


def _withheld(log: Sequence[str]) -> list[str]:
    return [line for line in list(log) if "names of segments withheld" in line]


@row("configuration_is_code")
@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_model_configuration_can_run_commands(
    sacrifice: Sacrifice, carrier: str, tmp_path: Path
) -> None:
    """Triton runs the command in the configuration; the gateway rejects it."""
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
    if IS_HURT_FIRST:
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
def test_only_own_shared_memory_can_be_registered(
    sacrifice: Sacrifice, carrier: str, tmp_path: Path
) -> None:
    """Triton accepts any region; the gateway accepts only those of the client, with valid sizes."""
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
        if IS_HURT_FIRST:
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


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_hung_server_fails_fast(sacrifice: Sacrifice, carrier: str, tmp_path: Path) -> None:
    """A direct call to a stopped Triton waits; through the gateway it fails at once."""
    sacrifice.revive()
    server = sacrifice.server
    body = json_body("FP32", [1, 4], [1, 2, 3, 4])
    config = tmp_path / "hung.yaml"
    address = server.address(carrier)
    text = OPEN.format(carrier=carrier, address=address, options="")
    probe = f'{address}", probe: {{interval: 1s, timeout: 300ms}}'
    config.write_text(text.replace(f'{address}"', probe))
    with serving(str(config)) as gateway:
        await_ready(gateway)
        http_address = gateway.addresses["main.http"]
        server.process.send_signal(signal.SIGSTOP)
        try:
            eventually(lambda: {"T"} == _states(server.process.pid))
            with pytest.raises(OSError, match="timed out"):
                post(server.http_address, FP32, body, timeout_s=1)
            end = time.monotonic() + 20
            while "does not respond" not in _error_of(http_address, body):
                assert time.monotonic() < end
            waits = []
            for _ in range(5):
                started_s = time.monotonic()
                status, _text = post(http_address, FP32, body)
                waits.append(time.monotonic() - started_s)
                assert status == 503
        finally:
            server.process.send_signal(signal.SIGCONT)
        # One of them may be the trial call, which waits.
        assert sorted(waits)[3] < 0.1
        await_ready(gateway)
        assert post(http_address, FP32, body)[0] == 200
    assert not sacrifice.is_hurt()


def _states(pid: int) -> set[str]:
    """Return the states of all threads of a process."""
    stats = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return {stat.rpartition(")")[2].split()[0] for stat in stats}


def _error_of(address: str, body: bytes) -> str:
    """Return the text of an error, or "" without a response in time."""
    try:
        return post(address, FP32, body, timeout_s=0.5)[1].decode()
    except OSError:
        return ""
