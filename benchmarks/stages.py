"""The cost of each stage of a small request: transports, frontend, every layer, codecs.

The whole gateway runs on a loop with connections in memory and 32 concurrent requests. The times
are those of our own code and of the loop, without system calls: CPU time, the minimum of many short
batches. The stages take turns, so that a busy moment of the machine affects all of them.

The cost of a transport is a larger stage minus its parts, and minus the same traffic over protocols
that do nothing. The cost of a layer is its time minus that of the layer below it. The upstream of
these layers responds at once.
"""

import asyncio
import itertools
import json
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from cProfile import Profile
from dataclasses import asdict, dataclass, replace
from functools import partial
from io import StringIO
from pstats import Stats
from types import MappingProxyType
from typing import Any, TypeVar

from benchmarks import applications, canned, messages, noop
from benchmarks.messages import GRPC_METHOD, Case, Message
from benchmarks.path import Calls
from benchmarks.progress import Say
from benchmarks.steps import LANES, Echo, Quick, Step, asking, awaited, called, chain, least, tasks
from benchmarks.traffic import (
    Connect,
    Load,
    connects_anew,
    ends_grpc,
    ends_http,
    grpc_calls,
    grpc_requests,
    http_requests,
)
from benchmarks.wires import MemoryLoop
from gateway.app.run.gateway import Gateway
from gateway.config.load import load_text
from gateway.frontend.frontend import Frontend
from gateway.ir.limits import MessageLimits
from gateway.processes.process import freeze_startup_objects
from gateway.registry import protocol
from gateway.wire.grpc import GrpcRequest, GrpcResponse
from gateway.wire.heads.request_id import attach_grpc_request_id, attach_http_request_id
from gateway.wire.http import Headers, HttpRequest, HttpResponse

T = TypeVar("T")

CONNECTION = "first of a connection"
START = "first 100 of a start"
RELOAD = "first 100 of a reload"
"""The moments of requests that are not repeated ones on an open connection."""
SENT_ON, REBUILT = "tfs-tfs sent on", "tfs-tfs rebuilt"
"""The ways of one request to a server of its own protocol."""
_FEW = (80, 320)
_FIRST_100 = (0, 100)

_FIELDS = (("Host", "127.0.0.1:8000"), ("User-Agent", "load"), ("Accept", "*/*"))
_SHOWN = 45
_WARM_UP = 320
_PATHS = {
    "oip": "/v2/models/{}/infer",
    "tfs": "/v1/models/{}:predict",
    "mlflow": "/invocations",
}
# Otherwise the log line of a call is part of the path when the machine is slow: the first 100 calls
# of a second are logged.
_NO_CALL_LINES = MappingProxyType({"telemetry": {"log": {"calls_per_second": 0}}})

SCALE = "(a Task and a future)"
BUDGET = {
    "server transport": 1.5 + 2.0,
    "decode_call": 2.5,
    "layers": 1.5 + 1.0,
    "encode_call": 1.9,
    "client transport": 1.0,
    "decode_reply": 2.5,
    "encode_reply": 1.4,
    SCALE: 2.1,
}
"""Goals in microseconds for a small request, without system calls, on the machine of RESULTS.md.

`SCALE` is not a stage. It is the cost of a Task and a future on that machine, to compare machines.
The server transport includes head parsing, routing, the Task and its future. The layers include
checks, deadline, limits, metrics and the decision to log.
"""


@dataclass(frozen=True)
class Row:
    """The cost of one stage.

    Attributes:
        us: Its own CPU time in microseconds.
    """

    way: str
    stage: str
    us: float

    @property
    def budget_us(self) -> float | None:
        """Return the goal of the stage in microseconds, if it has one."""
        return BUDGET.get(self.stage)

    def document(self) -> dict[str, object]:
        """Return the row for JSON."""
        return {**asdict(self), "budget_us": self.budget_us}


@dataclass(frozen=True)
class Way:
    """A protocol for input and one for output.

    Attributes:
        back: Carrier of the upstream; None for a model in the gateway.
        kind: Of requests as applications send them; "" for one that is repeated.
        protocol: The protocol of the client.
        server: The protocol of the upstream.
        signature: The upstream's option, with which no message is sent on; "" for none.
        moment: CONNECTION, START or RELOAD; "" for requests of a warm gateway.
        runs: The requests of the short and the long run of `counts`.
    """

    name: str
    front: str
    back: str | None
    question: Message
    case: Case
    kind: str = ""
    protocol: str = "oip"
    server: str = "oip"
    signature: str = ""
    moment: str = ""
    runs: tuple[int, int] = (320, 1280)

    @property
    def path(self) -> str:
        """The path of the request over HTTP."""
        return _PATHS[self.protocol].format(self.case.model)

    @property
    def reply(self) -> Message:
        """What a server replies over HTTP."""
        encode = messages.binary_reply if self.server == "oip" else messages.rows_reply
        return encode(self.case)


def ways() -> list[Way]:
    """Return the ways to measure."""
    case = messages.small()
    json_request, grpc_request = messages.json_request(case), messages.grpc_request(case)
    return [
        Way("json-grpc", "http", "grpc", json_request, case),
        Way("grpc-http", "grpc", "http", grpc_request, case),
        Way("grpc-grpc", "grpc", "grpc", grpc_request, case),
        Way("json-noop", "http", None, json_request, case),
        Way("grpc-noop", "grpc", None, grpc_request, case),
    ]


def row_ways() -> list[Way]:
    """Return the ways of the same request as rows: JSON without datatypes."""
    case = messages.small()
    return [
        Way("tfs-grpc", "http", "grpc", messages.rows_request(case), case, protocol="tfs"),
        Way("mlflow-grpc", "http", "grpc", messages.columns_request(case), case, protocol="mlflow"),
    ]


def passing_ways() -> list[Way]:
    """Return the ways of one request to a server of its own protocol, sent on and rebuilt."""
    case = messages.small()
    passed = Way(
        SENT_ON,
        "http",
        "http",
        messages.rows_request(case),
        case,
        protocol="tfs",
        server="tfs",
    )
    return [passed, replace(passed, name=REBUILT, signature="own")]


def application_ways() -> list[Way]:
    """Return the ways with requests as applications send them."""
    return [
        replace(way, name=f"{way.name} {kind}", kind=kind)
        for kind in applications.KINDS
        for way in ways()[:2]
    ]


def extreme_ways() -> list[Way]:
    """Return the ways with long heads, and with more forms than any cache holds."""
    return [
        replace(way, name=f"{way.name} {kind}", kind=kind, runs=_FEW)
        for kind in applications.EXTREMES
        for way in ways()[:2]
    ]


def first_ways() -> list[Way]:
    """Return the ways of the first requests of a connection, of a start and of a reload."""
    return [
        replace(way, name=f"{way.name}, {moment}", moment=moment, runs=runs)
        for moment, runs in ((CONNECTION, _FEW), (START, _FIRST_100), (RELOAD, _FIRST_100))
        for way in ways()[:2]
    ]


def measure(only: str, say: Say, batches: int = 30) -> list[Row]:
    """Measure the ways whose names contain *only*, each stage in a number of *batches*."""
    rows: list[Row] = []
    for found in each(only, say, lambda bench: bench.rows(batches)):
        rows += found
    return rows


def profile(only: str, say: Say, requests: int = 10_000) -> str:
    """Return the profile of the interpreter for the ways whose names contain *only*.

    The profiler makes calls more expensive: it shows how often functions run, not for how long.
    """
    return "\n".join(each(only, say, lambda bench: bench.profile(requests)))


def path(only: str, say: Say) -> str:
    """Return the files that one request passes, for the ways whose names contain *only*."""
    return "\n".join(each(only, say, lambda bench: bench.path(), _NO_CALL_LINES))


def each(
    only: str,
    say: Say,
    ask: Callable[["Bench"], Coroutine[Any, Any, T]],
    more: Mapping[str, object] = MappingProxyType({}),
) -> Iterator[T]:
    """Yield what *ask* returns for each way whose name contains *only*."""
    for way in ways():
        if only in way.name:
            say(f"  stages: {way.name}")
            yield run(way, ask, more)


def run(
    way: Way,
    ask: Callable[["Bench"], Coroutine[Any, Any, T]],
    more: Mapping[str, object] = MappingProxyType({}),
) -> T:
    """Start the gateway of *way*, and return what *ask* returns.

    Args:
        way: What is measured.
        ask: Is given the running gateway.
        more: Further sections of the configuration.
    """
    loop = MemoryLoop()
    try:
        return loop.run_until_complete(_run(loop, way, ask, more))
    finally:
        loop.close()


async def _run(
    loop: MemoryLoop,
    way: Way,
    ask: Callable[["Bench"], Coroutine[Any, Any, T]],
    more: Mapping[str, object],
) -> T:
    more_fields = applications.reply_fields(way.kind)
    loop.upstream = lambda: _canned(way, way.back or "http", more_fields)
    configuration = {**_configuration(way), **more}
    gateway = Gateway(load_text(json.dumps(configuration)))
    await gateway.start()
    freeze_startup_objects()
    try:
        return await ask(Bench(loop, gateway, way, configuration))
    finally:
        await gateway.stop(0, 0)
        await asyncio.sleep(0)  # closed connections are notified in the next turn


class _Varying(canned.Http):
    """A canned server whose responses have fields of their own."""

    def __init__(self, reply: Message, more_fields: Callable[[], bytes]) -> None:
        super().__init__(reply.body, dict(reply.fields))
        self._more_fields = more_fields
        first, _, self._rest = self._answer.partition(b"\r\n")
        self._first = first + b"\r\n"

    def reply(self) -> None:
        """Write the next response."""
        self._transport.write(self._first + self._more_fields() + self._rest)


def _canned(way: Way, carrier: str, more_fields: Callable[[], bytes] = bytes) -> asyncio.Protocol:
    if carrier == "grpc":
        return canned.Grpc(messages.grpc_reply(way.case).body)
    return _Varying(way.reply, more_fields)


def _configuration(way: Way) -> dict[str, object]:
    found: dict[str, object] = {
        "version": 1,
        "listeners": [{"name": "main", "http": "127.0.0.1:0", "grpc": "127.0.0.1:0"}],
        "admin": {"address": None, "metrics": None},
    }
    if way.protocol != "oip":
        listener = {"name": "main", "http": "127.0.0.1:0", "protocols": [way.protocol]}
        found["listeners"] = [listener | {"default_model": way.case.model}]
        # Rows have no datatypes, and the canned server declares no inputs.
        found["models"] = {way.case.model: {"signature": messages.signature(way.case)}}
    if way.back is None:
        return found | {"models": noop.models(way.case)}
    return found | _upstream(way, probe="1h")


def _upstream(way: Way, probe: str) -> dict[str, object]:
    """Return the upstream of a configuration, with the time between two probes."""
    options = {"dialect": "unknown"} if way.server == "oip" else {}
    if way.signature:
        options["signature"] = way.signature
    server = {
        "url": f"{way.server}+{way.back}://127.0.0.1:9",
        "options": options,
        "probe": {"interval": probe},
    }
    return {"upstreams": {"server": server}}


class Bench:
    """One way and its parts.

    Args:
        loop: The loop of the gateway.
        gateway: The running gateway.
        way: What is measured.
        configuration: That of the gateway.

    Attributes:
        way: What is measured.
    """

    def __init__(
        self, loop: MemoryLoop, gateway: Gateway, way: Way, configuration: Mapping[str, object]
    ) -> None:
        self._loop = loop
        self._gateway = gateway
        self._configuration = configuration
        self.way = way
        # Transports cache repeated heads of requests and responses.
        length = ("Content-Length", str(len(way.question.body)))
        self._headers = Headers((*_FIELDS, length, *way.question.fields))
        spec = protocol(way.protocol)
        binding: Any = spec.http if way.front == "http" else spec.grpc
        self._codec: Any = binding.codec(MessageLimits(), spec.options({}))
        attach_id: Any = attach_http_request_id if way.front == "http" else attach_grpc_request_id
        self._frontend: Any = Frontend(self._codec, gateway.service, attach_headers=attach_id)
        self._chain = [*chain(gateway.service)]
        port = int(gateway.addresses[f"main.{way.front}"].rpartition(":")[2])
        self._connect = partial(loop.connect, port)

    async def rows(self, batches: int) -> list[Row]:
        """Return every stage, from the outside in."""
        codec = self._codec
        echo = partial(Echo, await self._recorded())
        steps: dict[str, Step] = {
            "whole": self.load(),
            "no gateway": self._load(partial(self._loop.join, echo), self.way.front),
            "ask": awaited(lambda: self._frontend.handle(self._wire())),
            "wire": called(self._wire),
            SCALE: tasks,
            "decode_call": called(lambda: codec.decode_call(self._wire())),
            "call": called(self._call),
        }
        # Calls and responses cache values, so each one is used once.
        inner = {
            "frontend": awaited(lambda: self._frontend.handle(self._wire())),
            "encoded": awaited(self._encoded),
        }
        for place, layer in enumerate(self._chain):
            inner[str(place)] = awaited(lambda layer=layer: layer(self._call()))  # type: ignore[misc]  # mypy: lambdas' defaults
        if self.way.back is not None:
            upstream: Any = self._chain[-1]
            quick = Quick(upstream._client, self._answer())  # noqa: SLF001  # to look inside
            inner = {name: asking(upstream, quick, step) for name, step in inner.items()}
            await inner["frontend"](LANES)
            steps |= self._upstream_steps(upstream, self.way.back, [*quick.wires])
        # One after the other: the interpreter specialises code for the last client.
        found = await least(steps, batches)
        return [*self._rows(found | await least(inner, batches))]

    async def reload(self) -> Mapping[str, list[str]]:
        """Replace the upstreams, routes and layers of the gateway; return what changed."""
        changed = {**self._configuration, "policies": {"timeout": "59s"}}
        if self.way.back is not None:
            changed |= _upstream(self.way, probe="2h")
        return await self._gateway.reload(load_text(json.dumps(changed)))

    def load(self) -> Step:
        """Return the step that sends requests to the gateway."""
        if self.way.kind:
            return self._application_load(self.way.kind)
        if self.way.moment == CONNECTION:
            connect = connects_anew(self._connect, self._loop.disconnect)
            return self._load(connect, self.way.front, greets=True)
        return self._load(self._connect, self.way.front)

    def _application_load(self, kind: str) -> Step:
        """Return the step that sends requests as applications send them."""
        lanes, cases = itertools.count(), applications.cases(self.way.case, kind)
        if self.way.front == "grpc":
            bodies = [messages.grpc_request(case).body for case in cases]

            def calls() -> Iterator[bytes]:
                lane = next(lanes)
                blocks = applications.header_blocks(kind, lane, GRPC_METHOD)
                return grpc_calls(blocks, applications.turns(bodies, lane))

            return Load(LANES, self._connect, calls, ends_grpc).run
        questions = [
            (f"/v2/models/{case.model}/infer", messages.json_request(case)) for case in cases
        ]
        return Load(
            LANES,
            self._connect,
            lambda: applications.http_heads(kind, next(lanes), questions),
            ends_http,
        ).run

    async def profile(self, requests: int) -> str:
        """Return the profile of the whole."""
        load, profiler, text = self.load(), Profile(), StringIO()
        await load(requests // 10)  # warm-up
        profiler.enable()
        await load(requests)
        profiler.disable()
        Stats(profiler, stream=text).sort_stats("tottime").print_stats(_SHOWN)
        return f"{self.way.name}, {requests} requests\n{text.getvalue()}"

    async def path(self) -> str:
        """Return the path of one request, once the caches know its form."""
        load, calls = self.load(), Calls()
        await load(_WARM_UP)
        with calls:
            await load(1)
        return calls.text(self.way.name)

    def _upstream_steps(self, upstream: Any, carrier: str, wires: Sequence[Any]) -> dict[str, Step]:
        codec, client = upstream._codec, upstream._client  # noqa: SLF001  # to look inside
        call, answer = self._call(), self._answer()
        # As the client received them: each has its own id.
        wire = itertools.cycle(wires)
        server = partial(_canned, self.way, carrier)
        return {
            "encode_call": called(lambda: codec.encode_call(self._call())),
            "client": awaited(lambda: client.send(next(wire), deadline=time.monotonic() + 30)),
            "decode_reply": called(lambda: codec.decode_reply(call, answer())),
            "answer": called(answer),
            "no client": self._load(partial(self._loop.join, server), carrier),
        }

    def _rows(self, us: dict[str, float]) -> Iterator[Row]:
        call, wire = us["call"], us["wire"]
        layers = [us[str(place)] - call for place in range(len(self._chain))]
        local = self.way.back is None
        decode_call = us["decode_call"] - wire
        found = {
            "loop and load": us["no gateway"],
            "server transport": us["whole"] - us["ask"] + wire - us["no gateway"],
            "decode_call": decode_call,
            "frontend": us["frontend"] - us["encoded"] + call - us["decode_call"],
            "layers": layers[0] - layers[-1],
        }
        parts = zip(self._chain, layers, layers[1:], strict=False)
        found |= {f"- {type(layer).__name__}": whole - less for layer, whole, less in parts}
        if local:
            found["model"] = layers[-1]
        else:
            encode_call, decode_reply = us["encode_call"] - call, us["decode_reply"] - us["answer"]
            found |= {
                "upstream": layers[-1] - encode_call - decode_reply - us["answer"],
                "encode_call": encode_call,
                "client transport": us["client"] - us["no client"],
                "canned server": us["no client"],
                "decode_reply": decode_reply,
            }
        found["encode_reply"] = us["encoded"] - us["0"]
        sum_us = sum(value for stage, value in found.items() if not stage.startswith("- "))
        found["not attributed"] = us["whole"] - sum_us
        found |= {"whole": us["whole"], SCALE: us[SCALE]}
        for stage, value in found.items():
            yield Row(self.way.name, stage, value)

    def _load(self, connect: Connect, carrier: str, *, greets: bool = False) -> Step:
        """Return the step that repeats a request; of gRPC, each one *greets* as the first one."""
        if carrier == "grpc":
            question = messages.grpc_request(self.way.case)
            requests = partial(grpc_requests, question)
            if greets:
                requests = partial(itertools.repeat, next(requests()))
            return Load(LANES, connect, requests, ends_grpc).run
        question = self.way.question
        if self.way.front == "grpc":  # this is the side of the upstream
            question = messages.binary_request(self.way.case)
        requests = partial(http_requests, question, self.way.path)
        return Load(LANES, connect, requests, ends_http).run

    async def _recorded(self) -> bytes:
        """Return a response of the gateway as bytes."""
        came: list[bytes] = []
        ends = ends_grpc if self.way.front == "grpc" else ends_http

        def keeps(data: bytes) -> bool:
            came.append(data)
            return ends(data)

        requests = partial(http_requests, self.way.question, self.way.path)
        if self.way.front == "grpc":
            requests = partial(grpc_requests, self.way.question)
        await Load(1, self._connect, requests, keeps).run(1)
        return came[-1]

    async def _encoded(self) -> None:
        call = self._call()
        self._codec.encode_reply(call, await self._chain[0](call))

    def _call(self) -> Any:
        return self._codec.decode_call(self._wire()).with_context(request_id="1")

    def _wire(self) -> Any:
        """Return the request as a transport passes it on."""
        body = (memoryview(self.way.question.body),)
        if self.way.front == "grpc":
            return GrpcRequest(GRPC_METHOD, body, (("user-agent", "load"),))
        return HttpRequest("POST", self.way.path, "", self._headers, body)

    def _answer(self) -> Callable[[], Any]:
        """Return a function that returns the response as the transport of an upstream does."""
        if self.way.back == "grpc":
            message = messages.grpc_reply(self.way.case).body
            return lambda: GrpcResponse((memoryview(message),))
        reply = self.way.reply
        headers = Headers(reply.fields)
        return lambda: HttpResponse(200, headers, (memoryview(reply.body),))
