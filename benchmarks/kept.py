"""Cached responses: the time of a hit, compared with a real Triton.

New requests and their repetitions take turns, twenty and twenty, one at a time, so that a busy
moment of the machine affects both. The times are measured at the service of the gateway (the cache,
and for a miss everything down to Triton and back), at its frontend (which also decodes and
encodes), and at an HTTP client. Each response is compared with the result of the model. Two models
do almost nothing. The third takes 10 ms, like many that are worth caching.
"""

import http.client
import json
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

from benchmarks import messages, systems
from benchmarks.messages import Arrays, Case, Message
from benchmarks.progress import Say
from benchmarks.systems import SERVERS, Absent
from gateway.app.run.gateway import Gateway
from gateway.config.load import load_text
from gateway.frontend.frontend import Frontend
from gateway.ir.calls import InferRequest
from gateway.ir.context import Context, ModelRef
from gateway.ir.limits import MessageLimits
from gateway.ir.tensors.tensor import array_tensor, as_numpy
from gateway.policies.batch.merge import SHARED_NEEDS
from gateway.registry import protocol
from gateway.wire.http import Headers, HttpRequest, HttpResponse

_MODELS = {"small": "simple", "602 KB": "sum_and_empty", "10 ms": "slow"}
_TELLS_APART = "x-number"
_FLOATS = 150_528
_TURN = 20

Ask = Callable[[], Awaitable[Arrays]]
Prepare = Callable[[Case, int], Ask]
"""Makes a request ready that no other number has, so that only asking is timed."""


@dataclass(frozen=True)
class Row:
    """Medians of one kind of request.

    Attributes:
        at: Where it is measured: service, frontend or client.
        ratio: Time of a hit in units of the time of a miss, the median over pairs.
    """

    size: str
    at: str
    hit_us: float
    miss_us: float
    ratio: float

    def document(self) -> dict[str, object]:
        """Return the row for JSON."""
        return asdict(self)


def run(requests: int, say: Say) -> list[Row]:
    """Measure hits and misses of each size at each place."""
    rows: list[Row] = []
    with _triton() as port:
        for size, model in _MODELS.items():
            say(f"  kept answers: {size}")
            sections = {
                "upstreams": {
                    "triton": {
                        "url": f"oip+grpc://127.0.0.1:{port}",
                        "options": {"dialect": "unknown"},
                        "forward_headers": [_TELLS_APART],
                    }
                },
                "models": {model: {"cache": {}}},
            }
            rows += uvloop.run(inside(size, sections, requests))
            with systems.serving(sections) as running:
                client = _client(running.http_port)
                rows.append(uvloop.run(_measured(size, "client", client, requests)))
    return rows


@contextmanager
def _triton() -> Iterator[int]:
    """Run Triton with the models of the interop tests, and yield its gRPC port."""
    if not (SERVERS / "triton" / ".ready").exists():
        raise Absent("Triton is not installed: `make interop` installs it")
    from tests.interop.servers.process import running  # noqa: PLC0415  # optional peer
    from tests.interop.servers.triton.start import prepare  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as name, running("triton", prepare, Path(name)) as server:
        yield int(server.grpc_address.rpartition(":")[2])


def _case(size: str, number: int) -> Case:
    """Return a request and its response."""
    if size == "small":
        left, right = np.full((1, 16), number, np.int32), np.full((1, 16), 3, np.int32)
        outputs = {"OUTPUT0": left + right, "OUTPUT1": left - right}
        return Case(size, _MODELS[size], {"INPUT0": left, "INPUT1": right}, outputs)
    if size == "10 ms":
        time_ms = np.array([10], np.int32)
        return Case(size, _MODELS[size], {"MS": time_ms}, {"MS_OUT": time_ms})
    numbers = np.zeros(_FLOATS, np.float32)
    numbers[0] = number
    outputs = {"SUM": np.array([number], np.float64), "EMPTY": np.zeros((0,), np.float32)}
    return Case(size, _MODELS[size], {"X": numbers}, outputs)


async def inside(size: str, sections: dict[str, Any], requests: int) -> list[Row]:
    """Measure within the process of the gateway. Each place has a gateway with an empty cache."""
    places = {"service": _service, "frontend": _frontend}
    rows = []
    for at, place in places.items():
        config = {
            "version": 1,
            "listeners": [{"http": "127.0.0.1:0"}],
            "admin": {"address": None, "metrics": None},
            "lifecycle": {"pre_stop": "0s", "drain": "1s"},
            **sections,
        }
        gateway = Gateway(load_text(json.dumps(config)))
        await gateway.start()
        try:
            rows.append(await _measured(size, at, place(gateway), requests))
        finally:
            await gateway.stop()
    return rows


def _service(gateway: Gateway) -> Prepare:
    def prepare(case: Case, number: int) -> Ask:
        inputs = tuple(array_tensor(*pair) for pair in case.inputs.items())
        context = Context(needs=SHARED_NEEDS, metadata=((_TELLS_APART, str(number)),))
        call = InferRequest(model=ModelRef(case.model), inputs=inputs, context=context)

        async def ask() -> Arrays:
            reply = await gateway.service(call)
            return {tensor.name: as_numpy(tensor) for tensor in reply.outputs}

        return ask

    return prepare


def _frontend(gateway: Gateway) -> Prepare:
    spec = protocol("oip")
    assert spec.http is not None
    codec: Any = spec.http.codec(MessageLimits(), spec.options({}))
    frontend: Frontend[HttpRequest, HttpResponse] = Frontend(codec, gateway.service)

    def prepare(case: Case, number: int) -> Ask:
        question = messages.binary_request(case)
        path, body = f"/v2/models/{case.model}/infer", (memoryview(question.body),)
        fields = Headers((*question.fields, (_TELLS_APART, str(number))))
        wire = HttpRequest("POST", path, "", fields, body)

        async def ask() -> Arrays:
            answer = await frontend.handle(wire)
            assert isinstance(answer, HttpResponse)
            return messages.read_http(Message(b"".join(answer.body), tuple(answer.headers)))

        return ask

    return prepare


def _client(port: int) -> Prepare:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)

    def prepare(case: Case, number: int) -> Ask:
        question = messages.binary_request(case)
        fields = {**dict(question.fields), _TELLS_APART: str(number)}

        async def ask() -> Arrays:
            # The client blocks the loop, and nothing else runs meanwhile.
            connection.request("POST", f"/v2/models/{case.model}/infer", question.body, fields)
            answer = connection.getresponse()
            return messages.read_http(Message(answer.read(), tuple(answer.getheaders())))

        return ask

    return prepare


async def _measured(size: str, at: str, prepare: Prepare, requests: int) -> Row:
    misses, hits = [], []
    for first in range(-_TURN, requests, _TURN):
        asks = []
        for number in range(first, first + _TURN):
            case = _case(size, number)
            asks.append((case, prepare(case, number)))
        times = [[await _timed(case, ask) for case, ask in asks] for _ in ("miss", "hit")]
        if first >= 0:  # the earlier requests were the warm-up
            misses += times[0]
            hits += times[1]
    return Row(
        size,
        at,
        hit_us=1e6 * statistics.median(hits),
        miss_us=1e6 * statistics.median(misses),
        ratio=statistics.median(hit / miss for hit, miss in zip(hits, misses, strict=True)),
    )


async def _timed(case: Case, ask: Ask) -> float:
    started_s = time.perf_counter()
    found = await ask()
    took = time.perf_counter() - started_s
    if not messages.same(found, case.outputs):
        raise RuntimeError(f"answers otherwise than the model: {str(found)[:300]}")
    return took
