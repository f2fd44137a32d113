"""LoadReportingFrontend: adds the load of the gateway to the responses of clients that ask for it.

A client or a proxy asks by the header `endpoint-load-metrics-format`, whose value is TEXT, JSON or
BIN. A frontend without this wrapper does nothing for it.

Source: xds/data/orca/v3/orca_load_report.proto; gRPC proposal A51; Envoy, "ORCA load reports".
"""

import base64
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

import orjson

from gateway.frontend.carriers import metadata_of
from gateway.ir.errors import GatewayError
from gateway.wire.frontend import ServerFrontend, SessionLimits
from gateway.wire.grpc import GrpcResponse
from gateway.wire.http import ExtendedHeaders, HttpResponse
from gateway.wire.protobuf.wire_format import I64, LEN, put_bytes, put_double, put_text, tag, varint

Q = TypeVar("Q")
A = TypeVar("A")

FORMAT: Final = "endpoint-load-metrics-format"
"""The header of a request that asks for the load."""
METRICS: Final = "endpoint-load-metrics"
METRICS_BIN: Final = "endpoint-load-metrics-bin"

_CPU: Final = varint(tag(1, I64))
_MEMORY: Final = varint(tag(2, I64))
_NAMED: Final = varint(tag(8, LEN))
_KEY: Final = varint(tag(1, LEN))
_VALUE: Final = varint(tag(2, I64))


@dataclass(frozen=True, slots=True)
class Load:
    """The load of a process.

    Attributes:
        cpu: The part of its processor cores that it uses.
        memory: The part of its memory limit that it uses.
        named: Other values, such as the inferences in the queue.
    """

    cpu: float
    memory: float
    named: dict[str, float]

    def text(self) -> str:
        """Return the load in the form TEXT."""
        values = {"cpu_utilization": self.cpu, "mem_utilization": self.memory}
        values |= {f"named_metrics.{name}": value for name, value in self.named.items()}
        return ",".join(f"{name}={value:g}" for name, value in values.items())

    def json(self) -> str:
        """Return the load in the form JSON."""
        document = {
            "cpu_utilization": self.cpu,
            "mem_utilization": self.memory,
            "named_metrics": self.named,
        }
        return orjson.dumps(document).decode()

    def message(self) -> bytes:
        """Return the load as an OrcaLoadReport."""
        found = bytearray()
        put_double(found, _CPU, self.cpu)
        put_double(found, _MEMORY, self.memory)
        for name, value in self.named.items():
            entry = bytearray()
            put_text(entry, _KEY, name)
            put_double(entry, _VALUE, value)
            put_bytes(found, _NAMED, entry)
        return bytes(found)


class LoadReportingFrontend(ServerFrontend[Q, A]):
    """Passes everything to another frontend, and adds the load to the responses that ask for it.

    A stream has it in its first response, as the request id.

    Args:
        inner: The frontend.
        load: Returns the load.
    """

    def __init__(self, inner: ServerFrontend[Q, A], load: Callable[[], Load]) -> None:
        self._inner = inner
        self._load = load

    async def __call__(self, wire: Q, /) -> AsyncGenerator[A, None]:
        """Yield the responses of the other frontend."""
        responses = self._reported(self._inner(wire), format_of(wire))
        async with aclosing(responses):
            async for response in responses:
                yield response

    def reject(self, error: GatewayError, /) -> A:
        """Return what the other frontend returns."""
        return self._inner.reject(error)

    def note_request(self, wire: Q, error: GatewayError, /) -> None:
        """Do what the other frontend does."""
        self._inner.note_request(wire, error)

    def reject_message(self, wire: Q, error: GatewayError, /) -> A:
        """Return what the other frontend returns."""
        return self._inner.reject_message(wire, error)

    def is_probe(self, wire: Q, /) -> bool:
        """Return what the other frontend returns."""
        return self._inner.is_probe(wire)

    async def handle(self, wire: Q, /) -> A | AsyncGenerator[A, None]:
        """Return the response of the other frontend, or its responses."""
        return self._with_load(await self._inner.handle(wire), format_of(wire))

    def early_bytes(self, wire: Q, /) -> int | None:
        """Return what the other frontend returns."""
        return self._inner.early_bytes(wire)

    async def handle_early(
        self, wire: Q, whole: Callable[[], Awaitable[Q]], /
    ) -> A | AsyncGenerator[A, None]:
        """Return the response of the other frontend, or its responses."""
        return self._with_load(await self._inner.handle_early(wire, whole), format_of(wire))

    async def session(
        self, wires: AsyncIterator[Q], limits: SessionLimits[Q, A], /
    ) -> AsyncGenerator[A, None]:
        """Yield the responses of the other frontend; the first message asks for the load."""
        form = ""

        async def read() -> AsyncGenerator[Q, None]:
            nonlocal form
            async for wire in wires:
                form = form or format_of(wire)
                yield wire

        is_first = True
        async with aclosing(self._inner.session(read(), limits)) as responses:
            async for response in responses:
                yield with_load(response, self._load, form) if is_first else response
                is_first = False

    def _with_load(
        self, handled: A | AsyncGenerator[A, None], form: str
    ) -> A | AsyncGenerator[A, None]:
        if not form:
            return handled
        if isinstance(handled, AsyncGenerator):
            return self._reported(handled, form)
        return cast("A", with_load(handled, self._load, form))

    async def _reported(
        self, responses: AsyncGenerator[A, None], form: str
    ) -> AsyncGenerator[A, None]:
        is_first = True
        async with aclosing(responses):
            async for response in responses:
                yield with_load(response, self._load, form) if is_first else response
                is_first = False


def format_of(wire: object) -> str:
    """Return the form in which a request asks for the load; "" for none."""
    found = next((value for name, value in metadata_of(wire) if name == FORMAT), "").upper()
    return found if found in _FORMS else ""


def with_load(response: Any, load: Callable[[], Load], form: str) -> Any:
    """Return a response of HTTP or gRPC with the load in the form *form*; "" adds nothing."""
    if not form:
        return response
    found = load()
    if isinstance(response, GrpcResponse):
        value = found.message() if form == _BIN else _FORMS[form](found)
        pair = (METRICS_BIN if form == _BIN else METRICS, value)
        return GrpcResponse(
            response.message, response.status, response.details, (*response.metadata, pair)
        )
    name = METRICS_BIN if form == _BIN else METRICS
    return HttpResponse(
        response.status,
        ExtendedHeaders(response.headers, ((name, _FORMS[form](found)),)),
        response.body,
        response.is_compressible,
        response.request_id,
    )


_BIN: Final = "BIN"
_FORMS: Final[dict[str, Callable[[Load], str]]] = {
    "TEXT": lambda load: f"TEXT {load.text()}",
    "JSON": lambda load: f"JSON {load.json()}",
    _BIN: lambda load: base64.b64encode(load.message()).decode(),
}
