"""Clients of four protocols and the gateway in one process, without sockets.

    python -m benchmarks.sockless MODELS-AS-JSON CLIENTS SECONDS

Each client gives a wire message to a frontend of the gateway and waits for the answer in wire form:
everything but the transports is there, so that this is the most that any of them can reach.
"""

import asyncio
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import uvloop

from benchmarks.batching import Question, questions
from benchmarks.messages import Message
from gateway.app.gateway import Gateway
from gateway.app.turns import take_turns_quickly
from gateway.config.load import load_text
from gateway.frontend import Frontend
from gateway.ir.limits import MessageLimits
from gateway.registry import protocol
from gateway.telemetry import log
from gateway.wire.grpc import GrpcRequest
from gateway.wire.http import Headers, HttpRequest

Ask = Callable[[], Awaitable[object]]


async def _main(models: dict[str, Any], clients: int, seconds: float) -> dict[str, float]:
    config = {
        "version": 1,
        "listeners": [{"http": "127.0.0.1:0"}],
        "admin": {"address": None, "metrics": None},
        "models": models,
        "lifecycle": {"pre_stop": "0s", "drain": "1s"},
    }
    gateway = Gateway(load_text(json.dumps(config)))
    await gateway.start()
    asks = [_ask(question, gateway) for question in questions()]
    latencies: list[float] = []
    end = 0.0

    async def again(ask: Ask) -> None:
        while (begun := time.perf_counter()) < end:
            await ask()
            latencies.append(time.perf_counter() - begun)

    try:
        for ask in asks:
            await ask()  # warms
        cpu, begun = time.process_time(), time.perf_counter()
        end = begun + seconds
        await asyncio.gather(*(again(asks[number % len(asks)]) for number in range(clients)))
        took = time.perf_counter() - begun
        cpu = time.process_time() - cpu
    finally:
        await gateway.stop()
    return {
        "rate": len(latencies) / took,
        "p50_us": 1e6 * statistics.median(latencies),
        "cpu": cpu / took,
        "errors": 0,
    }


def _ask(question: Question, gateway: Gateway) -> Ask:
    """Return what asks once; it raises where the answer is not the model's."""
    spec = protocol(question.protocol)
    target = question.target
    body = (memoryview(target.message.body),)
    codec: Any
    wire: Any
    if target.carrier == "grpc":
        assert spec.grpc is not None
        codec = spec.grpc.codec(MessageLimits(), spec.options({}))
        wire = GrpcRequest(target.method, body)
    else:
        assert spec.http is not None
        codec = spec.http.codec(MessageLimits(), spec.options({}))
        path, _, query = target.path.partition("?")
        wire = HttpRequest("POST", path, query, Headers(target.message.fields), body)
    frontend: Any = Frontend(codec, gateway.service)
    wanted: list[bytes] = []

    async def ask() -> None:
        answer = await frontend.ask(wire)
        found = b"".join(answer.message if target.carrier == "grpc" else answer.body)
        if not wanted:
            fields = () if target.carrier == "grpc" else tuple(answer.headers)
            question.check(Message(found, fields))
            wanted.append(found)
        elif found != wanted[0]:
            raise RuntimeError(f"{question.protocol} answered otherwise: {found[:200]!r}")

    return ask


if __name__ == "__main__":
    log.configure("warning", "json")
    take_turns_quickly()
    asked = _main(json.loads(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(asked)))
