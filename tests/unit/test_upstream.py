from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from gateway.api.protocol import FramingCodec
from gateway.concurrency.limiter import QUEUE_TIMEOUT_US
from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ModelMetadataRequest,
    ModelReadyRequest,
    ServerLiveRequest,
    ServerMetadataRequest,
    ServerReadyRequest,
    StreamInferRequest,
)
from gateway.ir.context import Context, ModelRef, Origin
from gateway.ir.errors import (
    Decoupled,
    GatewayError,
    InvalidRequest,
    MalformedMessage,
    TooLarge,
    Unavailable,
    Unsupported,
    UpstreamProtocolError,
)
from gateway.ir.metadata import ModelMetadata, ServerMetadata
from gateway.ir.work import charge
from gateway.upstream import DialectDetectingUpstream, Upstream
from tests.fakes import FakeCodec, ScriptedService


class TextCodec(FakeCodec):
    def __init__(self, error: GatewayError | None = None) -> None:
        self._error = error

    def encode_call(self, call: Call[Any], /) -> str:
        return type(call).__name__

    def decode_reply(self, call: Call[Any], wire: str, /) -> Any:
        if self._error is not None:
            raise self._error
        return wire == "yes"

    def decode_item(self, call: StreamInferRequest, wire: str, /) -> InferResponse:
        if self._error is not None:
            raise self._error
        return InferResponse(model=ModelRef("m"), outputs=(), id=wire)


class TextClient:
    def __init__(self, *texts: str) -> None:
        self._texts = texts
        self.sent: list[tuple[str, float | None]] = []
        self.closed_streams = 0

    async def send(
        self, wire: str, /, *, deadline: float | None, decode: Callable[[str], Any]
    ) -> Any:
        self.sent.append((wire, deadline))
        return decode(self._texts[0])

    async def stream(self, wire: str, /, *, deadline: float | None) -> AsyncIterator[str]:
        self.sent.append((wire, deadline))
        try:
            for text in self._texts:
                yield text
        finally:
            self.closed_streams += 1

    async def close(self) -> None:
        raise AssertionError


def upstream(client: TextClient, error: GatewayError | None = None) -> Upstream[str, str]:
    return Upstream("far", TextCodec(error), client)


STREAM = StreamInferRequest(request=InferRequest())


async def test_encodes_a_call_and_decodes_its_reply() -> None:
    """The call is sent without a deadline."""
    client = TextClient("yes")
    assert await upstream(client)(ServerLiveRequest()) is True
    assert [("ServerLiveRequest", None)] == client.sent


async def test_sends_the_deadline_less_its_margin() -> None:
    """The upstream's deadline is 5 ms earlier, so that its response arrives in time."""
    client = TextClient("yes")
    await upstream(client)(ServerLiveRequest(context=Context(deadline=10.0)))
    assert pytest.approx(9.995) == client.sent[0][1]


@pytest.mark.parametrize("error", [MalformedMessage("odd"), TooLarge("big")])
async def test_an_undecodable_response_is_an_upstream_error(error: GatewayError) -> None:
    """Errors of decoding become UpstreamProtocolError, which names the upstream."""
    with pytest.raises(UpstreamProtocolError, match=r"'far'.*(odd|big)"):
        await upstream(TextClient("?"), error)(ServerLiveRequest())


@pytest.mark.parametrize(
    "error", [InvalidRequest("no"), TooLarge("you", origin=Origin("text", "wire"))]
)
async def test_an_error_sent_by_the_upstream_is_unchanged(error: GatewayError) -> None:
    """A well-formed error of the upstream is raised as it is."""
    with pytest.raises(type(error)) as caught:
        await upstream(TextClient("?"), error)(ServerLiveRequest())
    assert error is caught.value


async def test_decodes_a_stream_and_closes_it() -> None:
    """Each item is decoded, and the client's stream is closed."""
    client = TextClient("a", "b")
    items = await upstream(client)(STREAM)
    assert ["a", "b"] == [item.id async for item in items]
    assert 1 == client.closed_streams


async def test_an_undecodable_item_ends_the_stream() -> None:
    """It raises UpstreamProtocolError."""
    items = await upstream(TextClient("a"), MalformedMessage("odd"))(STREAM)
    with pytest.raises(UpstreamProtocolError):
        await anext(items)


async def test_the_metadata_of_a_model_have_the_dialect_of_its_server() -> None:
    """A frontend learns from them how the server reads requests."""

    class MetadataCodec(TextCodec):
        dialect = "odd"

        def decode_reply(self, call: Call[Any], wire: str, /) -> Any:
            return ModelMetadata(name=wire)

    service: Upstream[str, str] = Upstream("far", MetadataCodec(), TextClient("m"))
    found = await service(ModelMetadataRequest(model=ModelRef("m")))
    assert ("m", "odd") == (found.name, found.dialect)


class SplittingCodec(TextCodec, FramingCodec[str, str]):
    """Each text is a message; "?" is malformed, and "!" the server's own error."""

    def splitter(self) -> SplittingCodec:
        return self

    def receive(self, part: str, /) -> list[str]:
        return list(part)

    def end(self) -> list[str]:
        return []

    def decode_item(self, call: StreamInferRequest, wire: str, /) -> InferResponse:
        if wire == "?":
            raise MalformedMessage("odd")
        if wire == "!":
            raise TooLarge("you", origin=Origin("text", "wire"))
        return super().decode_item(call, wire)


async def test_a_malformed_message_between_others_does_not_end_the_stream() -> None:
    """Where a splitter cuts messages, those after a malformed one are read as before."""
    service: Upstream[str, str] = Upstream("far", SplittingCodec(), TextClient("a?", "b"))
    found = [item async for item in await service(STREAM)]
    assert ["a", "", "b"] == [item.id for item in found]
    assert isinstance(found[1].error, UpstreamProtocolError)
    assert "'far' sent a malformed response: odd" in found[1].error.message
    assert not found[1].is_final


@pytest.mark.parametrize(("text", "error"), [("?a", UpstreamProtocolError), ("a!b", TooLarge)])
async def test_a_malformed_first_message_and_an_own_error_end_the_stream(
    text: str, error: type[GatewayError]
) -> None:
    """Nothing readable came before the one, and nothing comes after the other."""
    service: Upstream[str, str] = Upstream("far", SplittingCodec(), TextClient(text))
    with pytest.raises(error):
        _ = [item async for item in await service(STREAM)]


async def test_an_error_item_sent_by_the_upstream_is_unchanged() -> None:
    """A well-formed error in a stream is raised as it is."""
    error = TooLarge("you", origin=Origin("text", "wire"))
    items = await upstream(TextClient("a"), error)(STREAM)
    with pytest.raises(TooLarge):
        await anext(items)


def metadata(name: str) -> ServerMetadata:
    return ServerMetadata(name, "1")


READY = ModelReadyRequest(model=ModelRef("m"))


async def test_the_dialect_is_detected_once() -> None:
    """Concurrent calls wait for one metadata request, and share the detected upstream."""
    names: list[str] = []
    plain = ScriptedService(metadata("triton"))
    dialect_service = ScriptedService(always=True)

    def make(name: str) -> ScriptedService:
        names.append(name)
        return dialect_service

    service = DialectDetectingUpstream(plain, make)
    assert all(await asyncio.gather(service(READY), service(READY)))
    assert await service(READY) is True
    assert ["triton"] == names
    assert [ServerMetadataRequest] == [type(call) for call in plain.calls]


async def test_liveness_and_readiness_need_no_dialect() -> None:
    """These calls are equal in every dialect and do not start the detection."""
    service = DialectDetectingUpstream(ScriptedService(True, True), lambda _name: ScriptedService())
    assert await service(ServerReadyRequest()) is True
    assert await service(ServerLiveRequest()) is True


async def test_a_failed_detection_is_repeated() -> None:
    """Calls fail with the detection; the next call starts it again."""
    plain = ScriptedService(Unavailable("away"), metadata("kserve"))
    names: list[str] = []

    def make(name: str) -> ScriptedService:
        names.append(name)
        return ScriptedService(True)

    service = DialectDetectingUpstream(plain, make)
    with pytest.raises(Unavailable):
        await service(READY)
    assert await service(READY) is True
    assert ["kserve"] == names


async def test_a_rejected_detection_selects_no_dialect() -> None:
    """After an error sent by the server itself the name is empty."""
    refusal = InvalidRequest("no such path", origin=Origin("text", "wire"))
    names: list[str] = []

    def make(name: str) -> ScriptedService:
        names.append(name)
        return ScriptedService(True)

    assert await DialectDetectingUpstream(ScriptedService(refusal), make)(READY) is True
    assert [""] == names


async def test_an_oversized_response_is_an_upstream_error() -> None:
    """The caller's own request is not reported as too large."""

    class Full(TextClient):
        async def send(
            self, wire: str, /, *, deadline: float | None, decode: Callable[[str], Any]
        ) -> Any:
            raise TooLarge("the response has 65 MiB", limit="message_bytes")

    with pytest.raises(UpstreamProtocolError, match="65 MiB"):
        await upstream(Full())(ServerLiveRequest())


class NoStreams(TextCodec):
    """A protocol without streams."""

    def encode_call(self, call: Call[Any], /) -> str:
        if isinstance(call, StreamInferRequest):
            raise Unsupported("no streams here")
        return super().encode_call(call)

    def decode_reply(self, call: Call[Any], wire: str, /) -> Any:
        return self.decode_item(StreamInferRequest(request=InferRequest()), wire)


async def test_a_protocol_without_streams_sends_one_inference() -> None:
    """The inference has the context of the stream, and its reply is the last item."""
    client = TextClient("only")
    upstream: Upstream[str, str] = Upstream("u", NoStreams(), client)
    context = Context(deadline=10.0)
    call = StreamInferRequest(context=context, request=InferRequest())
    found = [item async for item in await upstream(call)]
    assert [("only", True)] == [(item.id, item.is_final) for item in found]
    assert [("InferRequest", 9.995)] == client.sent


class SingleFirst(TextCodec):
    """Prefers the single reply, which a decoupled model rejects."""

    prefers_single_reply = True

    def __init__(self, *, decoupled: bool = False, streams: bool = True) -> None:
        super().__init__()
        self._decoupled = decoupled
        self.can_stream = streams

    def encode_call(self, call: Call[Any], /) -> str:
        if isinstance(call, StreamInferRequest) and not self.can_stream:
            raise Unsupported("no shape for it")
        return super().encode_call(call)

    def decode_reply(self, call: Call[Any], wire: str, /) -> Any:
        if self._decoupled:
            raise Decoupled("the model is decoupled")
        return self.decode_item(STREAM, wire)


async def test_a_codec_may_prefer_the_single_reply() -> None:
    """A stream call of a model with one reply is sent as one inference."""
    client = TextClient("only")
    found = [item.id async for item in await Upstream("u", SingleFirst(), client)(STREAM)]
    assert (["only"], ["InferRequest"]) == (found, [text for text, _ in client.sent])


async def test_a_decoupled_model_is_called_as_a_stream() -> None:
    """It rejects the first inference; later calls are streams at once."""
    client = TextClient("a", "b")
    upstream: Upstream[str, str] = Upstream("u", SingleFirst(decoupled=True), client)
    for _ in range(2):
        assert ["a", "b"] == [item.id async for item in await upstream(STREAM)]
    expected = ["InferRequest", "StreamInferRequest", "StreamInferRequest"]
    assert expected == [text for text, _ in client.sent]
    assert 2 == client.closed_streams


async def test_a_decoupled_model_without_a_stream_form_is_rejected() -> None:
    """The error has the server's text and the reason why no stream is possible."""
    codec = SingleFirst(decoupled=True, streams=False)
    items = await Upstream("u", codec, TextClient("x"))(STREAM)
    with pytest.raises(Unsupported, match="the model is decoupled; no shape for it"):
        await anext(aiter(items))


@pytest.mark.parametrize("call", [STREAM, STREAM.request], ids=["stream", "single"])
async def test_later_rejections_of_a_decoupled_model_have_the_reason(
    call: Call[Any],
) -> None:
    """Stream and unary calls report it once the model is known to be decoupled."""
    codec = SingleFirst(decoupled=True)
    service: Upstream[str, str] = Upstream("u", codec, TextClient("a"))
    assert ["a"] == [item.id async for item in await service(STREAM)]
    codec.can_stream = False

    async def refused() -> None:
        async for _ in await service(call):
            pass

    with pytest.raises(Unsupported, match="the model is decoupled; no shape for it"):
        await refused()


class LongStreams(SingleFirst):
    """Encodes stream calls that cost *items* of work."""

    def __init__(self, items: int, *, decoupled: bool) -> None:
        super().__init__(decoupled=decoupled)
        self.prefers_single_reply = decoupled
        self._items = items
        self.written_by = 0

    def encode_call(self, call: Call[Any], /) -> str:
        if isinstance(call, StreamInferRequest):
            charge(self._items)
            self.written_by = threading.get_ident()
        return super().encode_call(call)


@pytest.mark.parametrize("decoupled", [True, False])
@pytest.mark.parametrize("items", [1, 1_000_000])
async def test_long_stream_calls_are_encoded_on_another_thread(
    items: int, *, decoupled: bool
) -> None:
    """Short ones are encoded on the event loop, which a long one would block."""
    codec = LongStreams(items, decoupled=decoupled)
    service: Upstream[str, str] = Upstream("u", codec, TextClient("a", "b"))
    assert ["a", "b"] == [item.id async for item in await service(STREAM)]
    is_on_loop = items == 1
    assert is_on_loop is (codec.written_by == threading.get_ident())


class Halves:
    """Splits parts at semicolons."""

    def __init__(self) -> None:
        self._rest = ""

    def receive(self, part: str, /) -> list[str]:
        *whole, self._rest = (self._rest + part).split(";")
        return whole

    def end(self) -> list[str]:
        if self._rest and not self._rest.startswith("!"):
            raise MalformedMessage(f"{self._rest!r} is left")
        return [self._rest] if self._rest else []


class Cutting(TextCodec, FramingCodec[str, str]):
    def splitter(self) -> Halves:
        return Halves()


async def test_a_framing_codec_splits_parts_into_messages() -> None:
    """Messages may span several parts."""
    upstream: Upstream[str, str] = Upstream("u", Cutting(), TextClient("a;b", "c;", "d;"))
    call = StreamInferRequest(request=InferRequest())
    assert ["a", "bc", "d"] == [item.id async for item in await upstream(call)]


async def test_the_end_of_a_stream_may_complete_a_message() -> None:
    """The splitter may return the last message at the end."""
    upstream: Upstream[str, str] = Upstream("u", Cutting(), TextClient("a;", "!b"))
    call = StreamInferRequest(request=InferRequest())
    assert ["a", "!b"] == [item.id async for item in await upstream(call)]


async def test_a_stream_that_ends_within_a_message_is_an_error() -> None:
    """The incomplete message is an error of the upstream."""
    upstream: Upstream[str, str] = Upstream("u", Cutting(), TextClient("a;b"))
    items = await upstream(StreamInferRequest(request=InferRequest()))
    assert "a" == (await anext(items)).id
    with pytest.raises(UpstreamProtocolError, match="'b' is left"):
        await anext(items)


class QueueTimeouts(TextClient):
    """Records the queue timeout in effect when a request is sent."""

    def __init__(self) -> None:
        super().__init__("yes", "no")
        self.found: list[int | None] = []

    async def send(
        self, wire: str, /, *, deadline: float | None, decode: Callable[[str], Any]
    ) -> Any:
        self.found.append(QUEUE_TIMEOUT_US.get())
        return await super().send(wire, deadline=deadline, decode=decode)

    async def stream(self, wire: str, /, *, deadline: float | None) -> AsyncIterator[str]:
        self.found.append(QUEUE_TIMEOUT_US.get())
        async for text in super().stream(wire, deadline=deadline):
            yield text


async def test_a_request_is_sent_with_its_queue_timeout() -> None:
    """Each request has its own, and the previous value is restored afterwards."""
    client = QueueTimeouts()
    service = upstream(client)
    for timeout_us in (30, 60, None, 30):
        await service(InferRequest(timeout_us=timeout_us))
    assert [30, 60, None, 30] == client.found
    client.found.clear()
    for timeout_us in (30, None):
        request = InferRequest(timeout_us=timeout_us)
        items = await service(StreamInferRequest(request=request))
        assert ["yes", "no"] == [item.id async for item in items]
    assert [30, None] == client.found
    assert QUEUE_TIMEOUT_US.get() is None
    assert 2 == client.closed_streams
