"""Many calls of every protocol, on pipelined connections, to a gateway with a mirror and to one without.

Every reply is the same byte for byte except for the date and a running number, and the counts balance.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import yaml

from gateway.ir.calls import InferRequest
from gateway.ir.context import ModelRef
from gateway.ir.limits import MessageLimits
from gateway.ir.tensors.tensor import RequestedOutput, array_tensor
from gateway.registry import protocol
from gateway.wire.grpc import GrpcRequest
from gateway.wire.http import HttpRequest
from tests.cases import brpc_oracle as oracle
from tests.integration import workers_kit
from tests.integration.cli_kit import Running, serving
from tests.integration.migration import mirror_kit as kit

# Calls of the long run; the specification asks for MIRROR_CALLS=100000. A busy machine of two cores
# makes 350 in a second.
CALLS = int(os.environ.get("MIRROR_CALLS", "20000"))

# A reply that differs once is wrong: no second try hides it.
pytestmark = [pytest.mark.timeout(300 + CALLS // 100), pytest.mark.flaky(reruns=0)]

SHORT = 700
WINDOW = 8
CONNECTIONS = 3
VARIANTS = 11
PROTOCOLS = 7
# gRPC's own client takes ten times as long for a call as a pipelined connection.
GRPC_SHARE = 20
MODELS = {
    # Name of the route: old and new target.
    "near": ("local/simple", "remote/simple"),
    "far": ("remote/simple", "local/simple"),
    "failing": ("local/simple", "local/fail"),  # whose inputs are others
}
# The date, and the number of a request in TensorRT v1, which depends on the order of connections.
_VARYING = re.compile(rb"\r\ndate: [^\r\n]*|(?<= )request_id: \d+(?=\r\n)", re.IGNORECASE)
_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)", re.IGNORECASE)
_INFER = "/inference.GRPCInferenceService/ModelInfer"

Make = Callable[[int], bytes]
"""Returns the bytes of a request for the number of a call."""


def configuration(far: str, *, is_mirrored: bool) -> str:
    """Return a gateway before the server *far*, with three routes and a migration of each."""
    examples = "gateway.backends.examples"
    config: dict[str, Any] = {
        "version": "1",
        "listeners": [
            {
                "http": "127.0.0.1:0",
                "grpc": "127.0.0.1:0",
                "streams": [{"protocol": "grps", "address": "127.0.0.1:0"}],
            }
        ],
        "admin": {"address": "127.0.0.1:0", "metrics": None},
        "lifecycle": {"pre_stop": "0s", "drain": "5s"},
        "telemetry": {"log": {"level": "info"}},
        "upstreams": {"remote": {"url": f"oip+http://{far}"}},
        "models": {
            name: {"backend": "python", "options": {"callable": f"{examples}:{name}"}}
            for name in ("simple", "fail")
        },
        "routes": [],
    }
    migrations = {}
    for name, sides in MODELS.items():
        targets: list[dict[str, Any]] = []
        for side, weight in zip(sides, (1, 0), strict=True):
            upstream, _, model = side.partition("/")
            target = {"model": model, "weight": weight}
            targets.append(target if upstream == "local" else {"upstream": upstream, **target})
        config["routes"].append({"name": name, "match": {"model": name}, "targets": targets})
        sample = {"percent": 100, "per_second": 1_000_000}
        migrations[name] = {
            "route": name,
            "old": sides[0],
            "new": sides[1],
            "sample": sample,
            "mirror": {"timeout": "60s"},
        }
    return yaml.safe_dump({**config, "migrations": migrations} if is_mirrored else config)


# -- requests


def arrays(variant: int) -> dict[str, Any]:
    first = np.arange(16, dtype=np.int32).reshape(1, 16) + 1000 * variant
    return {"INPUT0": first, "INPUT1": np.full((1, 16), variant, np.int32)}


def call_of(model: str, variant: int, *, has_batch_axis: bool = True) -> InferRequest:
    """Return a call; that of TensorRT v1 has its batch size next to the shapes."""
    found = {name: array if has_batch_axis else array[0] for name, array in arrays(variant).items()}
    return InferRequest(
        batch_size=None if has_batch_axis else 1,
        model=ModelRef(model),
        inputs=tuple(array_tensor(name, array) for name, array in found.items()),
        outputs=tuple(RequestedOutput(f"OUTPUT{number}") for number in range(2)),
    )


def http_makes(name: str, options: dict[str, Any]) -> list[Make]:
    """Return requests over HTTP of every model and variant."""
    spec = protocol(name)
    found = []
    for model, variant in itertools.product(MODELS, range(VARIANTS)):
        binding = spec.carriers["http"]
        own = {"path": f"/graphpipe/{model}"} if name == "graphpipe" else {}
        codec = binding.codec(MessageLimits(), spec.options({**options, **own}))
        wire = codec.encode_call(call_of(model, variant, has_batch_axis=name != "trtis"))
        assert isinstance(wire, HttpRequest)
        found.append(_numbered(wire))
    return found


def _numbered(wire: HttpRequest) -> Make:
    body = b"".join(bytes(each) for each in wire.body)
    names = {"host", "content-length", "x-request-id", "connection"}
    fields = [(key, value) for key, value in wire.headers.pairs if key.lower() not in names]
    query = f"?{wire.query}" if wire.query else ""
    lines = [f"{wire.method} {wire.path}{query} HTTP/1.1", "Host: h"]
    lines += [f"{key}: {value}" for key, value in fields]
    head = "\r\n".join([*lines, f"Content-Length: {len(body)}", "x-request-id: "]).encode()
    return lambda number: b"%bcall-%d\r\n\r\n%b" % (head, number, body)


def malformed() -> list[Make]:
    """Return requests that no codec can read; they reach no route."""
    bodies = (b'{"inputs": 1}', b"{", b'{"inputs": [{"name": "INPUT0", "datatype": "X"}]}')
    head = b"POST /v2/models/near/infer HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\nx-request-id: "
    return [
        lambda number, body=body: b"%bcall-%d\r\n\r\n%b" % (head % len(body), number, body)  # type: ignore[misc]
        for body in bodies
    ]


def brpc_makes() -> list[Make]:
    found: list[Make] = []
    for model, variant in itertools.product(MODELS, range(VARIANTS)):
        tensors = [
            oracle.Tensor(name, oracle.INT32, (1, 16), tuple(array.reshape(-1).tolist()))
            for name, array in arrays(variant).items()
        ]
        found.append(oracle.Question("Predict", oracle.message(model, tensors)).bytes)
    return found


def grpc_messages() -> list[bytes]:
    spec = protocol("oip")
    codec = spec.carriers["grpc"].codec(MessageLimits(), spec.options({}))
    found = []
    for model, variant in itertools.product(MODELS, range(VARIANTS)):
        wire = codec.encode_call(call_of(model, variant))
        assert isinstance(wire, GrpcRequest)
        found.append(b"".join(bytes(each) for each in wire.message))
    return found


# -- connections


def http_end(data: bytearray) -> int:
    """Return where the first response ends; 0 if it is not complete."""
    head = data.find(b"\r\n\r\n")
    if head < 0:
        return 0
    length = _LENGTH.search(data, 0, head)
    assert length is not None, bytes(data[:head])
    end = head + 4 + int(length[1])
    return end if len(data) >= end else 0


def frame_end(data: bytearray) -> int:
    """Return where the first frame ends; 0 if it is not complete."""
    if len(data) < 12:
        return 0
    end = 12 + int.from_bytes(data[4:8], "big")
    return end if len(data) >= end else 0


class Pipeline(asyncio.Protocol):
    """A connection with several requests on their way; the replies come in their order."""

    def __init__(self, requests: list[bytes], end_of: Callable[[bytearray], int]) -> None:
        self._requests = iter(requests)
        self._count = len(requests)
        self._end_of = end_of
        self._data = bytearray()
        self._transport: asyncio.Transport | None = None
        self.replies: list[bytes] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(b"".join(itertools.islice(self._requests, WINDOW)))

    def data_received(self, data: bytes) -> None:
        self._data += data
        before = len(self.replies)
        while end := self._end_of(self._data):
            self.replies.append(bytes(self._data[:end]))
            del self._data[:end]
        assert self._transport is not None
        following = itertools.islice(self._requests, len(self.replies) - before)
        self._transport.write(b"".join(following))
        if len(self.replies) == self._count and not self.done.done():
            self.done.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionResetError(f"{error}: {bytes(self._data)!r}"))


async def exchange(
    address: str, requests: list[bytes], end_of: Callable[[bytearray], int]
) -> list[bytes]:
    """Send requests on one connection; return the replies without what varies anyway."""
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    transport, pipeline = await loop.create_connection(
        lambda: Pipeline(requests, end_of), host, int(port)
    )
    try:
        await pipeline.done
    finally:
        transport.close()
    if end_of is frame_end:
        # Frames of brpc may come in another order; each has the number of its request.
        return sorted(pipeline.replies)
    return [_VARYING.sub(b"", each) for each in pipeline.replies]


class GrpcCaller:
    """A channel whose messages stay bytes."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.aio.insecure_channel(address)
        self._method = self._channel.unary_unary(_INFER)

    async def exchange(self, requests: list[tuple[int, bytes]]) -> list[tuple[bytes, str]]:
        """Return the replies with the code of each."""
        return await asyncio.gather(*(self._call(*each) for each in requests))

    async def _call(self, number: int, message: bytes) -> tuple[bytes, str]:
        call = self._method(message, timeout=60, metadata=(("x-request-id", f"call-{number}"),))
        return await call, (await call.code()).name

    async def close(self) -> None:
        await self._channel.close()


@dataclass
class Gateways:
    """A gateway with a mirror, and one without."""

    mirrored: Running
    plain: Running

    async def exchange(
        self, listener: str, requests: list[bytes], end_of: Callable[[bytearray], int]
    ) -> list[bytes]:
        """Send requests to both on some connections each; return their common replies."""
        parts = [requests[first::CONNECTIONS] for first in range(CONNECTIONS)]
        found = await asyncio.gather(
            *(
                exchange(running.addresses[listener], part, end_of)
                for running in (self.mirrored, self.plain)
                for part in parts
            )
        )
        mirrored, plain = found[:CONNECTIONS], found[CONNECTIONS:]
        for ours, theirs in zip(mirrored, plain, strict=True):
            for one, other in zip(ours, theirs, strict=True):
                assert one == other
        return list(itertools.chain.from_iterable(mirrored))


async def send(gateways: Gateways, calls: int, per_round: int) -> Counter[str]:
    """Send so many calls to both gateways, each round in one protocol and in gRPC.

    Returns:
        The successful calls by protocol.
    """
    pipelines = {
        "oip.http": ("main.http", http_makes("oip", {"dialect": "unknown"}), http_end),
        "oip.http, binary": ("main.http", http_makes("oip", {"dialect": "triton"}), http_end),
        "trtis.http": ("main.http", http_makes("trtis", {}), http_end),
        "graphpipe.http": ("main.http", http_makes("graphpipe", {}), http_end),
        "grps.http": ("main.http", http_makes("grps", {}), http_end),
        "malformed": ("main.http", malformed(), http_end),
        "grps.brpc": ("main.grps.brpc", brpc_makes(), frame_end),
    }
    messages = grpc_messages()
    callers = [
        GrpcCaller(each.addresses["main.grpc"]) for each in (gateways.mirrored, gateways.plain)
    ]
    numbers = itertools.count(1)
    found: Counter[str] = Counter()
    names: Iterator[str] = itertools.cycle(name for name in pipelines if name != "malformed")
    remaining = calls
    try:
        while remaining:
            name = next(names)
            listener, makes, end_of = pipelines[name]
            by_grpc = min(remaining, per_round) // GRPC_SHARE
            count = min(remaining, per_round) - by_grpc
            requests = [makes[number % len(makes)](number) for number in _some(numbers, count)]
            replies = await gateways.exchange(listener, requests, end_of)
            found[name] += len(replies) if end_of is frame_end else _successful(replies)
            wrong = [makes(number) for makes, number in zip(malformed(), numbers, strict=False)]
            assert not _successful(await gateways.exchange("main.http", wrong, http_end))
            grpc_requests = [
                (each, messages[each % len(messages)]) for each in _some(numbers, by_grpc)
            ]
            mirrored, plain = [await each.exchange(grpc_requests) for each in callers]
            assert mirrored == plain
            found["oip.grpc"] += sum(code == "OK" for _, code in mirrored)
            remaining -= count + by_grpc
    finally:
        for each in callers:
            await each.close()
    return found


def _some(numbers: Iterator[int], count: int) -> list[int]:
    return list(itertools.islice(numbers, count))


def _successful(replies: list[bytes]) -> int:
    return sum(each.startswith(b"HTTP/1.1 200 ") for each in replies)


@pytest.mark.parametrize("calls", [SHORT, pytest.param(CALLS, marks=pytest.mark.slow)])
def test_mirror_changes_no_byte_of_a_reply(calls: int, tmp_path: Path) -> None:
    """No call fails because of the mirror, and each is compared, skipped or dropped."""
    far = tmp_path / "far.yaml"
    far.write_text(
        yaml.safe_dump(
            {
                "version": "1",
                "listeners": [{"http": "127.0.0.1:0"}],
                "admin": {"address": None, "metrics": None},
                "models": {
                    "simple": {
                        "backend": "python",
                        "options": {"callable": "gateway.backends.examples:simple"},
                    }
                },
            }
        )
    )
    with ExitStack() as stack:
        server = stack.enter_context(serving(str(far), patience_s=workers_kit.PATIENCE_S))
        running = []
        for is_mirrored in (True, False):
            path = tmp_path / f"{is_mirrored}.yaml"
            path.write_text(configuration(server.addresses["main.http"], is_mirrored=is_mirrored))
            running.append(
                stack.enter_context(serving(str(path), patience_s=workers_kit.PATIENCE_S))
            )
        gateways = Gateways(*running)
        successful = asyncio.run(send(gateways, calls, min(1000, calls // PROTOCOLS)))
        assert successful.total() == calls, successful
        assert len(successful) == PROTOCOLS

        def counts() -> dict[str, float]:
            return kit.values(workers_kit.metrics(gateways.mirrored))

        workers_kit.eventually(lambda: kit.is_balanced(counts()))
        found = counts()
        assert gateways.mirrored.stop() == 0
    assert kit.total(found, "gateway_migration_sampled_total") == calls
    assert kit.total(found, "gateway_migration_skipped_total") == 0
    dropped = {name for name, count in found.items() if "dropped_total{" in name and count}
    assert all('reason="queue"' in name for name in dropped), dropped
    for name, outcome in (("near", "match"), ("far", "match"), ("failing", "refused")):
        samples = f'gateway_migration_samples_total{{migration="{name}",outcome="{outcome}"}}'
        assert found[samples] > 0
    outcomes = {name for name, count in found.items() if "samples_total{" in name and count}
    assert len(outcomes) == len(MODELS), outcomes
