"""Attacks on memory, time, connections and descriptors: others are served, and all is released."""

from __future__ import annotations

import os
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import grpc
import pytest

from tests.hostile import frames
from tests.hostile.grpc_cases import request, tensor
from tests.hostile.json_cases import ROW
from tests.hostile.json_cases import request as json_request
from tests.hostile.judge import INFER, Patient, attack
from tests.hostile.process import CONFIG, Gateway, eventually, running
from tests.hostile.wire import (
    GOOD,
    LAST_GOOD,
    SIMPLE,
    Answer,
    Raw,
    ask,
    chunked,
    get,
    head,
    is_good,
    post,
)
from tests.scheduling import delayed_s

pytestmark = pytest.mark.hostile

OTHER = "127.0.0.2"
"""Another client's address."""
PER_ADDRESS = 48
"""Connections of one address, as config.yaml allows them."""
_MIB = 1 << 20


def _good_within(gateway: Gateway, seconds: float) -> None:
    """Assert that another client's request succeeds in time; time without a processor is no delay."""
    pid = gateway.process.pid
    delayed, started_s = delayed_s(pid), time.monotonic()
    assert is_good(ask(gateway.http, LAST_GOOD, source=OTHER))
    took_s = time.monotonic() - started_s
    assert took_s - max(0.0, delayed_s(pid) - delayed) < seconds


SLOW: dict[str, bytes] = {
    "nothing": b"",
    "a_line": b"POST /v2/models/simple/infer HTTP/1.1\r\n",
    "half_a_head": head("POST", SIMPLE)[:-2],
    "half_a_body": post(b"{", length=1000),
    "half_a_chunk": chunked(b"5\r\nab"),
    "an_endless_size": chunked(b"0" * 100),
}


@pytest.mark.parametrize("name", SLOW)
def test_slow_clients_are_closed_in_time(patient: Patient, name: str) -> None:
    """Forty slow connections end by the deadline, and another client is not delayed."""
    with ExitStack() as stack:
        raws = [stack.enter_context(Raw(patient.gateway.http)) for _ in range(40)]
        for raw in raws:
            raw.send([SLOW[name]])
        started_s = time.monotonic()
        open_ones = set(raws)
        while open_ones and time.monotonic() - started_s < 45:  # else they would stay for good
            _good_within(patient.gateway, 1)
            time.sleep(0.1)
            for raw in list(open_ones):
                if not _drips(raw):
                    open_ones.discard(raw)
        assert not open_ones


def _drips(raw: Raw) -> bool:
    """Send one byte more; False once the gateway has closed."""
    raw.socket.setblocking(False)
    try:
        with suppress(BlockingIOError):
            if raw.socket.recv(65536) == b"":
                return False
        raw.socket.send(b"0")
    except ConnectionError:
        return False
    return True


def test_unread_responses_cost_little_memory(patient: Patient) -> None:
    """Clients that request large responses and read none are cut."""
    gateway = patient.gateway
    body = json_request({**ROW, "shape": [100_000], "data": [1_000_000] * 100_000})
    data = post(body, path="/v2/models/identity_int32/infer")
    memory = gateway.status("VmRSS")
    with ExitStack() as stack:
        for _ in range(12):
            raw = stack.enter_context(Raw(gateway.http))
            raw.socket.setblocking(False)
            with suppress(BlockingIOError):
                for _ in range(8):
                    raw.socket.send(data)
        for _ in range(10):
            _good_within(gateway, 2)
            time.sleep(0.05)
        assert gateway.status("VmRSS") - memory < 64 * _MIB


def _filled(before: bytes, each: bytes, after: bytes, size: int = _MIB - 200) -> bytes:
    return before + each * ((size - len(before) - len(after)) // len(each)) + after


_ROW = b'{"name":"INPUT0","datatype":"INT32","shape":[1],"data":['
EXPENSIVE: dict[str, bytes] = {
    "unknown_lists": _filled(b'{"inputs":[],"x":[', b"[],", b"1]}"),
    "unknown_objects": _filled(b'{"inputs":[],"x":[', b'{"a":1},', b"1]}"),
    "unknown_keys": _filled(b'{"inputs":[],', b'"abcdefgh":1,', b'"x":1}'),
    "parameters": _filled(b'{"inputs":[],"parameters":{"a":[', b"[1],", b"1]}}"),
    "shape": _filled(b'{"inputs":[{"name":"INPUT0","shape":[', b"[1],", b"1]}]}"),
    "inputs": _filled(b'{"inputs":[', b"{},", b"1]}"),
    "outputs": _filled(b'{"inputs":[' + _ROW + b'1]}],"outputs":[', b"{},", b"1]}"),
    "data_lists": _filled(b'{"inputs":[' + _ROW, b"[],", b"1]}]}"),
    "data_objects": _filled(b'{"inputs":[' + _ROW, b"{},", b"1]}]}"),
    "big_integers": _filled(b'{"inputs":[' + _ROW, b"9" * 25 + b",", b"1]}]}"),
    "colons": _filled(b'{"inputs":[],"id":"', b":", b'"}'),
    "escapes": _filled(b'{"inputs":[],"id":"', b"\\u0041", b'"}'),
    "broken_at_the_end": _filled(b'{"inputs":[],"x":[', b"[],", b"]}"),
}


@pytest.mark.parametrize("name", EXPENSIVE)
def test_expensive_input_delays_no_other_client(patient: Patient, name: str) -> None:
    """Others wait a second at most for a request that is as costly as its size allows."""
    gateway = patient.gateway
    used = gateway.cpu_s()
    with ExitStack() as stack:
        for _ in range(3):
            raw = stack.enter_context(Raw(gateway.http))
            raw.send([post(EXPENSIVE[name], path="/v2/models/identity_int32/infer")])
            _good_within(gateway, 1)
            response = raw.answer()
            assert response is not None
            assert response.status in (400, 413, 501)
    assert gateway.cpu_s() - used < 3 * 0.4


def test_hundreds_of_pipelined_requests_are_served_in_order(patient: Patient) -> None:
    """Hundreds of requests sent at once get their responses in order."""
    with Raw(patient.gateway.http) as raw:
        assert raw.send([GOOD * 300])
        assert [True] * 300 == [is_good(raw.answer()) for _ in range(300)]


@pytest.mark.needs("readable_faults")
def test_nothing_behind_an_invalid_request_is_served(patient: Patient) -> None:
    """Requests before it are served or dropped, and the connection ends after its error."""
    with Raw(patient.gateway.http) as raw:
        raw.send([GOOD * 3 + b"G@T / HTTP/1.1\r\n\r\n" + GOOD * 3])
        response = raw.answer()
        count = 0
        while is_good(response):
            response = raw.answer()
            count += 1
        assert count <= 3
        assert response is not None
        assert (400, True) == (response.status, response.closes)
        assert raw.rest() == b""


def test_connection_flood_of_one_address_is_limited(patient: Patient) -> None:
    """Another address is served during the flood."""
    gateway = patient.gateway
    with ExitStack() as stack:
        for _ in range(200):
            with suppress(ConnectionError):
                stack.enter_context(Raw(gateway.http))
        for _ in range(10):
            _good_within(gateway, 1)
    assert eventually(lambda: is_good(ask(gateway.http, LAST_GOOD)))


@pytest.mark.parametrize(
    ("name", "source", "data", "response"),
    [
        ("main.http", "127.0.30.1", GOOD, b"HTTP/1.1 503 "),
        pytest.param(
            "main.grpc",
            "127.0.30.2",
            frames.BEGIN,
            b"\0\0\0\0\0\0\0\x0b",
            marks=pytest.mark.needs("connections"),
        ),
    ],
    ids=["http", "grpc"],
)
def test_connection_over_the_limit_gets_an_error(
    patient: Patient, name: str, source: str, data: bytes, response: bytes
) -> None:
    """It gets 503 or GOAWAY with ENHANCE_YOUR_CALM, is counted, and logged with its address."""
    gateway = patient.gateway
    text = f"too many connections from {source} (limit connections_per_address)".encode()
    counted = _refused_connections(gateway)
    refused = 0

    def is_logged() -> bool:
        """Connect once more; a line about others may have been logged in the same second."""
        nonlocal refused
        with socket.create_connection(gateway.addresses[name], 30, (source, 0)) as sock:
            sock.sendall(data)
            received = b"".join(iter(lambda: sock.recv(65536), b""))
        assert response in received
        assert text in received
        refused += 1
        return any(
            (event["event"], event.get("address")) == ("connections refused", source)
            for _, event in gateway.events()
        )

    with ExitStack() as stack:
        for _ in range(PER_ADDRESS):
            sock = socket.create_connection(gateway.addresses[name], 30, (source, 0))
            stack.enter_context(sock).sendall(data)
            assert sock.recv(4096)  # one that had sent nothing would be closed soon
        assert eventually(is_logged, 20)
        assert counted + refused == _refused_connections(gateway)


def _refused_connections(gateway: Gateway) -> float:
    page = get(gateway.addresses["admin"], "/metrics").decode()
    start = 'gateway_limit_exceeded_total{limit="connections_per_address"'
    return sum(float(line.split()[1]) for line in page.splitlines() if line.startswith(start))


def test_connection_churn_leaves_no_descriptor(patient: Patient) -> None:
    """Two thousand connections that are reset at once leave no descriptor."""
    gateway = patient.gateway
    before = gateway.descriptors()
    for _ in range(2000):
        with Raw(gateway.http) as raw:
            raw.socket.setsockopt(1, 13, b"\1\0\0\0\0\0\0\0")  # SO_LINGER 0: the end is a reset
    assert eventually(lambda: gateway.descriptors() <= before + 4)


def test_unknown_names_leave_no_series_and_no_memory(patient: Patient) -> None:
    """Ten thousand names that clients invent become no series and take no memory."""
    gateway = patient.gateway
    infer = patient.channel.unary_unary(INFER)
    # Each kind of call and of refusal has its series from its first call on.
    ask(gateway.http, head("GET", "/v2/models/invented/ready"))
    ask(gateway.http, head("GET", "/v2/models/simple/versions/7"))
    infer.future(request(tensor(), raw=[bytes(4)], model="invented"), timeout=30).exception()
    series = _series(gateway)
    memory = gateway.status("VmRSS")
    with Raw(gateway.http) as raw:
        for batch in range(0, 9_000, 100):
            names = [f"invented_{number}" for number in range(batch, batch + 100)]
            raw.send([head("GET", f"/v2/models/{name}/ready") for name in names])
            for _ in names:
                response = raw.answer()
                assert response is not None
                assert response.status in (400, 404, 503)
    calls = [
        infer.future(request(tensor(), raw=[bytes(4)], model=f"invented_{number}"), timeout=30)
        for number in range(50)
    ]
    for call in calls:
        assert call.exception().code() in (
            grpc.StatusCode.NOT_FOUND,
            grpc.StatusCode.RESOURCE_EXHAUSTED,
        )
    versions = [f"/v2/models/simple/versions/{number}" for number in range(1000)]
    for path in versions[:200]:
        attack(patient, head("GET", path))
    assert _series(gateway) <= series + 12  # a counter, a sum and buckets for a further refusal
    assert gateway.status("VmRSS") - memory < 8 * _MIB
    assert b"invented_" not in get(gateway.addresses["admin"], "/metrics")


def _series(gateway: Gateway) -> int:
    page = get(gateway.addresses["admin"], "/metrics").decode()
    names = {
        line.partition(" ")[0] for line in page.splitlines() if line and not line.startswith("#")
    }
    return len({name for name in names if "_bucket" not in name})


def test_bodies_over_the_memory_budget_are_503(tmp_path: Path) -> None:
    """Bodies in flight are limited in sum: the surplus gets 503, and memory stays bounded."""
    text = CONFIG.read_text().replace("in_flight_bytes: 32MiB", "in_flight_bytes: 16MiB")
    path = tmp_path / "gateway.yaml"
    path.write_text(text.replace("connections_per_address: 48", "connections_per_address: 128"))
    with running(str(path)) as gateway, ExitStack() as stack:
        assert is_good(ask(gateway.http, LAST_GOOD))
        memory = gateway.status("VmRSS")
        raws = [stack.enter_context(Raw(gateway.http)) for _ in range(32)]
        size = 4 * _MIB
        part = post(b"", length=size) + bytes(3 * _MIB)
        for raw in raws:
            raw.socket.settimeout(30)
            raw.send([part])
        responses = [raw.answer() for raw in raws]
        statuses = [response.status for response in responses if response is not None]
        assert statuses.count(503) >= 20
        assert set(statuses) <= {503, 408}
        # All bodies would be 96 MiB; the heap keeps what was free between buffers that grow.
        assert gateway.status("VmHWM") - memory < 5 * 16 * _MIB
        assert eventually(lambda: is_good(ask(gateway.http, LAST_GOOD)))
        assert "Traceback" not in gateway.text()


@pytest.fixture
def short() -> Iterator[Gateway]:
    """A gateway with few descriptors."""
    with running(str(CONFIG)) as gateway:
        resource.prlimit(gateway.process.pid, resource.RLIMIT_NOFILE, (96, 96))
        yield gateway
        assert "Traceback" not in gateway.text()


def test_gateway_survives_exhausted_descriptors(short: Gateway) -> None:
    """It does not spin, serves its operators, and recovers at once."""
    with ExitStack() as stack:
        for number in range(120):
            source = f"127.0.0.{2 + number // 30}"
            with suppress(OSError):
                stack.enter_context(Raw(short.http, source=source)).send([GOOD[:30]])
        used = short.cpu_s()
        started_s = time.monotonic()
        assert b"gateway_build_info" in get(short.addresses["admin"], "/metrics")
        time.sleep(max(0.0, 0.4 - (time.monotonic() - started_s)))
        # One that spins uses all of the time.
        assert short.cpu_s() - used < 0.75 * (time.monotonic() - started_s)
        assert short.alive
    assert eventually(lambda: is_good(_ask_last_good(short)))


def _ask_last_good(gateway: Gateway) -> Answer | None:
    with suppress(OSError):
        return ask(gateway.http, LAST_GOOD)
    return None


def test_requests_open_no_file(patient: Patient) -> None:
    """No request makes the gateway open a file of the client's choice."""
    links = Path(f"/proc/{patient.gateway.process.pid}/fd")
    for name in os.listdir(links):  # noqa: PTH208  # names are enough
        with suppress(FileNotFoundError):
            assert "/etc/passwd" not in os.readlink(links / name)  # noqa: PTH115
