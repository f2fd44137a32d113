"""Drawn messages, directly to a server of a client's protocol and through the gateway before it."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Mapping
from random import Random
from typing import Any, cast

import pytest

from gateway.app.build.upstreams import chain_of_server
from gateway.app.chains.upstream import ServerTraits
from gateway.frontend.frontend import Frontend
from gateway.ir.calls import Call, inference_of
from gateway.ir.errors import GatewayError, ModelNotFound
from gateway.ir.limits import DEFAULT_LIMITS
from gateway.policies.own_form import AskInOwnForm
from gateway.registry import protocol
from gateway.upstream import Upstream
from gateway.wire.grpc import GrpcRequest, GrpcResponse, GrpcStatus
from gateway.wire.http import Headers, HttpRequest, HttpResponse
from gateway.wire.stream import Frame
from tests.integration.drawn_messages import (
    Schema,
    damaged,
    drawn_json,
    drawn_proto,
    drawn_text,
    odd_json,
    odd_proto,
    odd_text,
    read_json,
    read_proto,
    read_text,
    schemas,
)
from tests.integration.test_whole_messages import before
from tests.integration.whole_messages import (
    JSON,
    PLAIN,
    WAYS,
    Answer,
    RecordingServer,
    Sent,
    Way,
    frame_of,
    recording,
    sending,
    sent_of,
)

pytestmark = pytest.mark.asyncio

LINES = "application/jsonlines"

DRAWN = (30, 1000)
"""How many messages of each protocol are compared: in the fast suite, and in the slow one."""
ODD = (300, 32_000)
"""How many odd messages there are of all protocols together."""

COUNTS = [pytest.param(0, id="few"), pytest.param(1, id="all", marks=pytest.mark.slow)]


def schema_of(way: Way, path: str) -> Schema | tuple[None, None]:
    """Return the messages of a method of gRPC or brpc."""
    return schemas(way.url.partition("+")[0]).get(path.replace("Brpc", ""), (None, None))


def is_proto(way: Way, kind: str) -> bool:
    """Return whether a body is a message of protobuf, neither compressed nor with an attachment."""
    return way.schema is not None and kind in (JSON, PLAIN)


def drawn(rng: Random, way: Way, sent: Sent) -> Sent:
    """Return a message with more than the gateway reads, in other words."""
    if is_proto(way, sent.kind):
        return sent._replace(body=drawn_proto(rng, sent.body, schema_of(way, sent.path)[0]))
    if sent.headers:
        ((name, text),) = sent.headers
        return sent._replace(headers=((name, drawn_text(rng, text)),))
    if sent.kind == JSON and sent.body:
        return sent._replace(body=drawn_json(rng, sent.body))
    return sent


class DrawnServer(RecordingServer):
    """A server whose responses are drawn, by the bytes of the request alone."""

    def answer(self, sent: Sent) -> Answer:
        """Return a response that says more than the gateway reads."""
        found = super().answer(sent)
        rng = Random(zlib.crc32(sent.body + sent.path.encode()))  # noqa: S311
        if found.status and self.way.schema:
            return found
        if is_proto(self.way, found.kind):
            schema = schema_of(self.way, sent.path)[1]
            return found._replace(body=drawn_proto(rng, found.body, schema))
        if self.way.carrier != "http":
            return found
        headers = [("x-own", "a"), ("x-own", "b c"), ("etag", '"1"'), ("cache-control", "no-store")]
        rng.shuffle(headers)
        body = drawn_json(rng, found.body) if found.kind == JSON else found.body
        return found._replace(body=body, headers=(*found.headers, *headers[: rng.randrange(4)]))


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize("count", COUNTS)
async def test_drawn_messages_and_replies_are_those_of_the_server(name: str, count: int) -> None:
    """Status, body and headers are those that a client gets of the server itself."""
    way, rng = WAYS[name], Random(name)  # noqa: S311
    messages = list(way.messages.values())
    async with (
        recording(way, DrawnServer) as server,
        before(way, server.address) as front,
        sending(way) as send,
    ):
        for number in range(DRAWN[count]):
            message = drawn(rng, way, messages[number % len(messages)])
            direct = await send(server.address, message)
            server.seen.clear()
            through = await send(front, message)
            path = way.at_server.get(message.path, message.path)
            assert server.seen == [message._replace(path=path)], through
            assert direct == through, message


# Odd messages.


class OnlyModel:
    """A layer that lets calls for one model pass, and keeps them."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.calls: list[Call[Any]] = []

    async def __call__(self, call: Call[Any], /) -> Any:
        model = getattr(call, "about", None) or call.model
        if model is not None and model.name not in ("m", ""):
            raise ModelNotFound(f"model {model.name!r} does not exist")
        self.calls.append(call)
        return await self._inner(call)


class _Client:
    """A client transport to a server that only keeps what it gets."""

    def __init__(self, way: Way) -> None:
        self._way = way
        self._server = RecordingServer(way)
        self.seen: list[Any] = []

    async def send(self, wire: Any, /, *, deadline: float | None, decode: Any) -> Any:
        self.seen.append(wire)
        found = decode(self._response(wire))
        return await found if asyncio.iscoroutine(found) else found

    def _response(self, wire: Any) -> Any:
        if isinstance(wire, Frame):
            return frame_of(self._way, self._server.answer(sent_of(self._way, wire)))
        body = bytes(wire.view)
        if isinstance(wire, GrpcRequest):
            answer = self._server.answer(Sent("POST", wire.method, body))
            status = GrpcStatus(answer.status)
            return (
                GrpcResponse((answer.body,), status)
                if not answer.status
                else GrpcResponse(status=status, details=answer.body.decode())
            )
        answer = self._server.answer(Sent(wire.method, wire.path, body))
        headers = Headers((("content-type", answer.kind), *answer.headers))
        return HttpResponse(answer.status, headers, (memoryview(answer.body),))

    async def stream(self, wire: Any, /, *, deadline: float | None) -> AsyncIterator[Any]:
        self.seen.append(wire)
        yield self._response(wire)

    async def close(self) -> None:
        """Close nothing."""


def _codec(way: Way, options: Mapping[str, Any]) -> Any:
    name, _, carrier = way.url.partition("+")
    spec = protocol(name)
    binding: Any = spec.carriers[carrier]
    return binding.codec(DEFAULT_LIMITS, spec.options(dict(options)))


def odd(rng: Random, way: Way, sent: Sent) -> Sent:
    """Return a message that readers may read differently."""
    if is_proto(way, sent.kind):
        return sent._replace(body=odd_proto(rng, sent.body, schema_of(way, sent.path)[0]))
    if sent.headers and rng.random() < 0.8:
        ((name, text),) = sent.headers
        return sent._replace(headers=((name, odd_text(rng, text)),))
    if sent.kind == JSON:
        return sent._replace(body=odd_json(rng, sent.body))
    return sent._replace(body=damaged(rng, sent.body))


def wire_of(way: Way, sent: Sent) -> Any:
    """Return a message as a transport gives it to a frontend."""
    body = (memoryview(sent.body),)
    if way.carrier == "grpc":
        return GrpcRequest(sent.path, body)
    if way.carrier != "http":
        return frame_of(way, sent, correlation=7)
    path, _, query = sent.path.partition("?")
    return HttpRequest(
        sent.method, path, query, Headers((("content-type", sent.kind), *sent.headers)), body
    )


@pytest.mark.parametrize("count", COUNTS)
async def test_odd_messages_are_the_same_to_all_readers(count: int) -> None:
    """Behind the gateway, readers by which the first or the last counts read what was checked."""
    sent_on = 0
    for name, way in WAYS.items():
        rng = Random(name)  # noqa: S311
        front, back, client = _codec(way, way.listener), _codec(way, way.options), _Client(way)
        only = OnlyModel(
            chain_of_server(
                Upstream("server", back, cast("Any", client)),
                ServerTraits(back.needs, codec=back),
            )
        )
        frontend = Frontend(front, AskInOwnForm(only))
        messages = [each for each in way.messages.values() if each.body]
        for number in range(ODD[count] // len(WAYS) + 1):
            message = odd(rng, way, messages[number % len(messages)])
            client.seen.clear()
            only.calls.clear()
            async for _ in frontend(wire_of(way, message)):
                pass
            for wire in client.seen:
                sent_on += 1
                _check_readers(way, wire)
                _check_call(front, wire, only.calls)
    assert sent_on > ODD[count] // 50


def _check_readers(way: Way, wire: Any) -> None:
    body = bytes(wire.view)
    first: Any
    last: Any
    for key, text in getattr(wire, "headers", Headers(())).pairs:
        if key.lower() == "nv-inferrequest":
            first, last = [read_text(text, is_first=each) for each in (True, False)]
            assert first == last, text
    sent = sent_of(way, wire) if isinstance(wire, Frame) else None
    if sent is not None and not is_proto(way, sent.kind):
        return
    if sent is not None or isinstance(wire, GrpcRequest):
        message = schema_of(way, wire.method if sent is None else sent.path)[0]
        body = body if sent is None else sent.body
        assert message is not None
        first, last = [read_proto(body, message, is_first=each) for each in (True, False)]
        assert first == last, body
    elif (kind := wire.headers.get("content-type") or JSON).startswith(JSON) and body:
        lines = body.split(b"\n") if kind.startswith(LINES) else [body]
        for line in filter(bytes.strip, lines):
            first, last = [read_json(line, is_first=each) for each in (True, False)]
            assert first == last, body


def _check_call(codec: Any, wire: Any, calls: list[Call[Any]]) -> None:
    """Check that a server that reads as the gateway reads the model and tensors of a call."""
    try:
        read = codec.decode_call(wire)
    except GatewayError as error:
        read = codec.decode_unread(wire, error)
    inference = inference_of(read)
    if inference is not None:
        checked = [each for each in map(inference_of, calls) if each is not None][-1]
        assert inference.model == checked.model
        assert inference.inputs == checked.inputs
