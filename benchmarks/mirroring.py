"""The mirror: how many calls the shadow process compares, and what a mirror costs the calls.

Comparisons are measured in this process, from the message of a serving process to the evidence; the
target replies at once. The cost is the rate of the gateway with a mirror, in percent of its rate
without one, at saturation. The shadow process runs on the core of the load, as it has a core of its
own elsewhere; the second column is the CPU time of the serving process alone.
"""

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

from benchmarks import load, messages, systems
from benchmarks.processes import cores
from benchmarks.rates import Row
from gateway.config.load import load_text
from gateway.ir.calls import Call, InferRequest, InferResponse
from gateway.ir.context import Context, ModelRef
from gateway.ir.tensors.tensor import Tensor, array_tensor
from gateway.migration.mirror.mirror import Mirror
from gateway.migration.targets import live_migrations
from gateway.shadow.records.privacy import Privacy
from gateway.shadow.records.records import Recordable, record_of
from gateway.shadow.records.transfer import (
    Confirmation,
    SampleMessage,
    decode_message,
    encode_message,
)

_SMALL_CALLS = 20_000
_LARGE_CALLS = 100
_FLOATS = 1 << 20
_GB = 1e9
_SECONDS = 4.0
_CONNECTIONS = 16
_MIGRATION = """
version: 1
listeners: [{http: 0}]
upstreams: {a: {url: "http://h:1"}, b: {url: "http://h:2"}}
routes: [{name: r, targets: [{upstream: a}, {upstream: b, weight: 0}]}]
migrations: {m: {route: r, old: a, new: b}}
"""


def rows() -> Iterator[Row]:
    """Measure everything once."""
    case = messages.small()
    inputs = [array_tensor(name, array) for name, array in case.inputs.items()]
    outputs = [array_tensor(name, array) for name, array in case.outputs.items()]
    seconds, cpu = uvloop.run(_compared(_SMALL_CALLS, inputs, outputs, outputs))
    yield Row("shadow comparisons, small calls", "calls/s", _SMALL_CALLS / seconds,
              _SMALL_CALLS / cpu, 20_000.0)  # fmt: skip
    old = np.random.default_rng(3).random((1, _FLOATS), np.float32)
    new = old + np.float32(1e-7)
    seconds, cpu = uvloop.run(
        _compared(_LARGE_CALLS, [], [array_tensor("y", old)], [array_tensor("y", new)])
    )
    size = _LARGE_CALLS * old.nbytes / _GB * 1000
    yield Row("shadow comparisons, FP32", "MB/s", size / seconds, size / cpu, 500.0)
    yield from _costs()


async def _compared(
    count: int, inputs: list[Tensor], old: list[Tensor], new: list[Tensor]
) -> tuple[float, float]:
    """Return the time and the CPU time of *count* shadow calls."""
    (migration,) = live_migrations(load_text(_MIGRATION).config)
    confirmed: list[Confirmation] = []
    reply = InferResponse(model=ModelRef("m"), outputs=tuple(new))

    async def target(_call: Call[Any]) -> Any:
        return reply

    mirror = Mirror(
        migration,
        {"old": target, "new": target},
        Privacy(),
        lambda _number, found: confirmed.append(found),
    )
    context = Context(protocol="oip.http", request_id="r")
    request = InferRequest(model=ModelRef("m"), context=context, inputs=tuple(inputs))
    call = Recordable(
        started_us=1_700_000_000_000_000,
        request=request,
        kind="InferRequest",
        context=context,
        target="a",
        took_us=1000,
        items=[(900, InferResponse(model=ModelRef("m"), outputs=tuple(old)))],
    )
    privacy = Privacy(payload="full", parameters=True)
    packet = memoryview(b"".join(encode_message(SampleMessage(record_of(call, privacy, None)))))
    started, cpu = time.perf_counter(), time.process_time()
    for number in range(1, count + 1):
        while not mirror.has_room:  # noqa: ASYNC110  # the mirror announces nothing
            await asyncio.sleep(0)
        mirror.put((1, 1), number, decode_message(packet), packet.nbytes)
    while mirror.evidence.compared < count:  # noqa: ASYNC110
        await asyncio.sleep(0)
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    outcomes = mirror.evidence.document(0)["outcomes"]
    assert outcomes["match"] == count, outcomes
    return seconds, cpu


def _costs() -> Iterator[Row]:
    plain_rate, plain_cpu = _served(None)
    for percent, required in ((10, 98.0), (100, 80.0)):
        rate, cpu = _served(percent)
        yield Row(f"calls with {percent} % mirrored, of those without", "%",
                  100 * rate / plain_rate, 100 * plain_cpu / cpu, required)  # fmt: skip


def _served(percent: float | None) -> tuple[float, float]:
    """Return the calls per second, and the CPU seconds of the serving process for each."""
    case = messages.small()
    with systems.canned("http", messages.binary_reply(case), cores()[1]) as server:
        url = f"oip+http://127.0.0.1:{server.http_port}"
        upstream = {"url": url, "options": {"dialect": "unknown"}}
        sections: dict[str, object] = {
            "upstreams": {"a": upstream, "b": upstream},
            "routes": [
                {
                    "name": "r",
                    "targets": [{"upstream": "a"}, {"upstream": "b", "model": "n", "weight": 0}],
                }
            ],
            "telemetry": {"log": {"level": "error"}},
        }
        if percent is not None:
            sample = {"percent": percent, "per_second": 1_000_000, "first": 0}
            names = {"route": "r", "old": "a", "new": "b/n"}
            sections["migrations"] = {"m": {**names, "sample": sample}}
        with systems.serving(sections) as gateway:
            _move_children(gateway.pid, cores()[1])
            path = f"/v2/models/{case.model}/infer"
            target = load.Target("http", gateway.http_port, path, messages.binary_request(case))
            load.run(target, _CONNECTIONS, 1.0, cores()[1])
            before = time.clock_gettime(~gateway.pid << 3 | 2)
            found = load.run(target, _CONNECTIONS, _SECONDS, cores()[1])
            cpu = time.clock_gettime(~gateway.pid << 3 | 2) - before
            assert not found.errors, found
            return found.requests / found.seconds, cpu / found.requests


def _move_children(pid: int, core: int) -> None:
    """Let the children of a process run on another core."""
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        os.sched_setaffinity(int(child), {core})
