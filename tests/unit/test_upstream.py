from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from gateway.concurrency.limiter import QUEUE_TIMEOUT_US
from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
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
from gateway.ir.metadata import ServerMetadata
from gateway.ir.work import charge
from gateway.upstream import DialectDetectingUpstream, Upstream
from gateway.wire.codec import FramingCodec
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
    def __init__(self, *answers: str) -> None:
        self._answers = answers
        self.sent: list[tuple[str, float | None]] = []
        self.closed_streams = 0

    async def send(
        self, wire: str, /, *, deadline: float | None, decode: Callable[[str], Any]
    ) -> Any:
        self.sent.append((wire, deadline))
        return decode(self._answers[0])

    async def stream(self, wire: str, /, *, deadline: float | None) -> AsyncIterator[str]:
        self.sent.append((wire, deadline))
        try:
            for answer in self._answers:
                yield answer
        finally:
            self.closed_streams += 1

    async def close(self) -> None:
        raise AssertionError


def upstream(client: TextClient, error: GatewayError | None = None) -> Upstream[str, str]:
    return Upstream("far", TextCodec(error), client)


STREAM = StreamInferRequest(request=InferRequest())


async def test_asks_and_reads_the_answer() -> None:
    """A call is encoded, sent without a deadline, and its answer decoded."""
    client = TextClient("yes")
    assert await upstream(client)(ServerLiveRequest()) is True
    assert [("ServerLiveRequest", None)] == client.sent


async def test_sends_the_deadline_less_its_margin() -> None:
    """The far end is given 5 ms less, so that its answer is back in time."""
    client = TextClient("yes")
    await upstream(client)(ServerLiveRequest(context=Context(deadline=10.0)))
    assert pytest.approx(9.995) == client.sent[0][1]


@pytest.mark.parametrize("error", [MalformedMessage("odd"), TooLarge("big")])
async def test_an_unreadable_answer_is_the_upstreams_fault(error: GatewayError) -> None:
    """Errors of decoding become UpstreamProtocolError, which names the upstream."""
    with pytest.raises(UpstreamProtocolError, match=r"'far'.*(odd|big)"):
        await upstream(TextClient("?"), error)(ServerLiveRequest())


@pytest.mark.parametrize(
    "error", [InvalidRequest("no"), TooLarge("you", origin=Origin("text", "wire"))]
)
async def test_an_error_the_upstream_sent_stays_itself(error: GatewayError) -> None:
    """What the upstream said in good form is passed on as it is."""
    with pytest.raises(type(error)) as caught:
        await upstream(TextClient("?"), error)(ServerLiveRequest())
    assert error is caught.value


async def test_reads_a_stream_and_closes_it() -> None:
    """Each answer of a stream is decoded, and the client's stream is closed."""
    client = TextClient("a", "b")
    items = await upstream(client)(STREAM)
    assert ["a", "b"] == [item.id async for item in items]
    assert 1 == client.closed_streams


async def test_a_bad_item_ends_the_stream() -> None:
    """An item that cannot be read is the upstream's fault."""
    items = await upstream(TextClient("a"), MalformedMessage("odd"))(STREAM)
    with pytest.raises(UpstreamProtocolError):
        await anext(items)


async def test_an_error_item_the_upstream_sent_stays_itself() -> None:
    """An error in a stream that the upstream wrote itself is passed on."""
    error = TooLarge("you", origin=Origin("text", "wire"))
    items = await upstream(TextClient("a"), error)(STREAM)
    with pytest.raises(TooLarge):
        await anext(items)


def metadata(name: str) -> ServerMetadata:
    return ServerMetadata(name, "1")


READY = ModelReadyRequest(model=ModelRef("m"))


async def test_asks_a_server_once_who_it_is() -> None:
    """Calls that come together wait for one question, and the same upstream answers them."""
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


async def test_questions_alike_in_every_dialect_settle_nothing() -> None:
    """Readiness probes work before anybody knows the dialect."""
    service = DialectDetectingUpstream(ScriptedService(True, True), lambda _name: ScriptedService())
    assert await service(ServerReadyRequest()) is True
    assert await service(ServerLiveRequest()) is True


async def test_a_server_that_is_away_is_asked_again() -> None:
    """While the question fails so do the calls; the next one asks again."""
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


async def test_a_server_that_will_not_say_has_no_name() -> None:
    """An error that the server itself answered with settles the dialect by no name."""
    refusal = InvalidRequest("no such path", origin=Origin("text", "wire"))
    names: list[str] = []

    def make(name: str) -> ScriptedService:
        names.append(name)
        return ScriptedService(True)

    assert await DialectDetectingUpstream(ScriptedService(refusal), make)(READY) is True
    assert [""] == names


async def test_an_answer_over_the_limit_is_the_upstreams_fault() -> None:
    """A client that stops reading a huge answer does not make the caller's request too large."""

    class Full(TextClient):
        async def send(
            self, wire: str, /, *, deadline: float | None, decode: Callable[[str], Any]
        ) -> Any:
            raise TooLarge("the response has 65 MiB", limit="message_bytes")

    with pytest.raises(UpstreamProtocolError, match="65 MiB"):
        await upstream(Full())(ServerLiveRequest())


class NoStreams(TextCodec):
    """Has no form for streams."""

    def encode_call(self, call: Call[Any], /) -> str:
        if isinstance(call, StreamInferRequest):
            raise Unsupported("no streams here")
        return super().encode_call(call)

    def decode_reply(self, call: Call[Any], wire: str, /) -> Any:
        return self.decode_item(StreamInferRequest(request=InferRequest()), wire)


async def test_a_stream_of_a_protocol_without_streams_has_one_answer() -> None:
    """The one inference is asked for, with what travels beside the stream, and is the last answer."""
    client = TextClient("only")
    upstream: Upstream[str, str] = Upstream("u", NoStreams(), client)
    context = Context(deadline=10.0)
    call = StreamInferRequest(context=context, request=InferRequest())
    found = [item async for item in await upstream(call)]
    assert [("only", True)] == [(item.id, item.is_final) for item in found]
    assert [("InferRequest", 9.995)] == client.sent


class SingleFirst(TextCodec):
    """Prefers the single reply; a decoupled model refuses to be asked for it."""

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


async def test_a_single_reply_is_preferred_to_a_stream_that_carries_less() -> None:
    """A model that has one reply gives it the usual way."""
    client = TextClient("only")
    found = [item.id async for item in await Upstream("u", SingleFirst(), client)(STREAM)]
    assert (["only"], ["InferRequest"]) == (found, [text for text, _ in client.sent])


async def test_a_decoupled_model_is_asked_for_a_stream_and_remembered() -> None:
    """It refuses once before it runs; from then on it is asked for a stream at once."""
    client = TextClient("a", "b")
    upstream: Upstream[str, str] = Upstream("u", SingleFirst(decoupled=True), client)
    for _ in range(2):
        assert ["a", "b"] == [item.id async for item in await upstream(STREAM)]
    expected = ["InferRequest", "StreamInferRequest", "StreamInferRequest"]
    assert expected == [text for text, _ in client.sent]
    assert 2 == client.closed_streams


async def test_a_decoupled_model_that_no_stream_reaches_says_why() -> None:
    """The refusal has the server's words and what the stream cannot carry."""
    codec = SingleFirst(decoupled=True, streams=False)
    items = await Upstream("u", codec, TextClient("x"))(STREAM)
    with pytest.raises(Unsupported, match="the model is decoupled; no shape for it"):
        await anext(aiter(items))


@pytest.mark.parametrize("call", [STREAM, STREAM.request], ids=["stream", "single"])
async def test_the_way_out_of_a_decoupled_model_was_missing_once_it_was_known(
    call: Call[Any],
) -> None:
    """Later refusals, and those of single requests, say what the stream cannot carry, too."""
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
    """Writes requests for streams, which cost so many items of work."""

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
async def test_long_requests_for_streams_are_written_on_another_thread(
    items: int, *, decoupled: bool
) -> None:
    """Short ones on the event loop, which a long one would block for tenths of a second."""
    codec = LongStreams(items, decoupled=decoupled)
    service: Upstream[str, str] = Upstream("u", codec, TextClient("a", "b"))
    assert ["a", "b"] == [item.id async for item in await service(STREAM)]
    is_here = items == 1
    assert is_here is (codec.written_by == threading.get_ident())


class Halves:
    """Cuts parts at semicolons."""

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


async def test_messages_are_cut_out_where_the_codec_has_to() -> None:
    """Parts of a stream become whole messages, wherever they were cut."""
    upstream: Upstream[str, str] = Upstream("u", Cutting(), TextClient("a;b", "c;", "d;"))
    call = StreamInferRequest(request=InferRequest())
    assert ["a", "bc", "d"] == [item.id async for item in await upstream(call)]


async def test_what_only_the_end_completes_is_a_message_too() -> None:
    """The splitter may give the last message at the end of the stream."""
    upstream: Upstream[str, str] = Upstream("u", Cutting(), TextClient("a;", "!b"))
    call = StreamInferRequest(request=InferRequest())
    assert ["a", "!b"] == [item.id async for item in await upstream(call)]


async def test_a_stream_that_ends_within_a_message_is_broken() -> None:
    """What is left at its end is the upstream's fault."""
    upstream: Upstream[str, str] = Upstream("u", Cutting(), TextClient("a;b"))
    items = await upstream(StreamInferRequest(request=InferRequest()))
    assert "a" == (await anext(items)).id
    with pytest.raises(UpstreamProtocolError, match="'b' is left"):
        await anext(items)


class QueueTimeouts(TextClient):
    """Notes the queue timeout that holds when a request is sent."""

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
        async for answer in super().stream(wire, deadline=deadline):
            yield answer


async def test_the_queue_timeout_of_a_request_bounds_its_wait_for_a_connection() -> None:
    """Each request has its own, also behind one that had another."""
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
