from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from typing import Any

import pytest

from gateway.frontend import Frontend, stamp_grpc, stamp_http
from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ServerLiveRequest,
    StreamInferRequest,
)
from gateway.ir.context import Context, ModelRef
from gateway.ir.errors import GatewayError, MalformedMessage, NotFound, Overloaded, TooLarge
from gateway.ir.work import charge
from gateway.wire.codec import StreamCodec
from gateway.wire.grpc import GrpcResponse
from gateway.wire.http import Headers, HttpResponse
from tests.fakes import FakeCodec, FakeStream, ScriptedService


class TextCodec(FakeCodec):
    """Calls are texts: "live", "stream", "known", anything else is malformed."""

    def decode_call(self, wire: str, _request_id: str = "", /) -> Call[Any]:
        if wire == "live":
            return ServerLiveRequest()
        if wire == "known":
            return ServerLiveRequest(context=Context(request_id="mine"))
        if wire == "stream":
            return StreamInferRequest(request=InferRequest())
        if wire == "bug":
            raise ZeroDivisionError
        raise MalformedMessage(f"{wire!r} is no call")

    def encode_item(self, call: StreamInferRequest, item: InferResponse, /) -> str:
        return f"item {item.id}"


async def answers(service: Any, wire: str, **settings: Any) -> list[str]:
    frontend: Frontend[str, str] = Frontend(TextCodec(), service, **settings)
    return [answer async for answer in frontend(wire)]


def response(number: str) -> InferResponse:
    return InferResponse(model=ModelRef("m"), outputs=(), id=number)


async def test_writes_the_reply() -> None:
    """A call is decoded, answered and its reply encoded."""
    assert ["reply True"] == await answers(ScriptedService(True), "live")


async def test_gives_a_call_without_an_id_one() -> None:
    """A call whose client sent no request id gets one; two calls get different ones."""
    service = ScriptedService(True, True)
    frontend: Frontend[str, str] = Frontend(TextCodec(), service)
    for _ in range(2):
        assert [answer async for answer in frontend("live")]
    first, second = (call.context.request_id for call in service.calls)
    assert first
    assert first != second


async def test_a_codec_may_give_a_call_its_id_at_once() -> None:
    """It is told the id; a call that it leaves without one gets it all the same."""

    class Naming(TextCodec):
        def decode_call(self, wire: str, request_id: str = "", /) -> Call[Any]:
            if wire == "named":
                return ServerLiveRequest(context=Context(request_id=request_id + "!"))
            return super().decode_call(wire)

    service = ScriptedService(True, True, True)
    frontend: Frontend[str, str] = Frontend(Naming(), service, stamp=lambda text, one: one)
    found = [await frontend.handle(wire) for wire in ("named", "live", "known")]
    assert found == [call.context.request_id for call in service.calls]
    assert found[0] == f"{found[1]}".replace("-2", "-1") + "!"
    assert "mine" == found[2]


async def test_keeps_the_id_of_the_client() -> None:
    """A request id that came with the call stays."""
    service = ScriptedService(True)
    await answers(service, "known")
    assert "mine" == service.calls[0].context.request_id


async def test_answers_bad_bytes_in_the_protocols_form_and_counts_them() -> None:
    """Bytes that are no call never reach the service; the refusal is told."""
    refused: list[tuple[str, GatewayError]] = []
    service = ScriptedService()
    found = await answers(service, "?", refused=lambda name, error: refused.append((name, error)))
    assert ["invalid_argument: '?' is no call"] == found
    assert [("text", "'?' is no call")] == [(name, error.message) for name, error in refused]
    assert [] == service.calls


async def test_answers_an_error_of_the_service() -> None:
    """What the service raises is encoded by the caller's own codec."""
    assert ["not_found: gone"] == await answers(ScriptedService(NotFound("gone")), "live")


async def test_hides_what_a_bug_says() -> None:
    """An exception that is no GatewayError is answered without its text."""
    expected = ["internal: internal error of the gateway"]
    assert expected == await answers(ScriptedService(ValueError("secret")), "live")
    assert expected == await answers(ScriptedService(), "bug")


async def test_writes_each_item_of_a_stream_and_closes_it() -> None:
    """Every answer of a stream is encoded, and the stream is closed at its end."""
    stream = FakeStream([response("1"), response("2")])
    assert ["item 1", "item 2"] == await answers(ScriptedService(stream), "stream")
    assert 1 == stream.closed


async def test_says_an_error_in_mid_stream() -> None:
    """An error after the first item is one more answer, and the last."""
    stream = FakeStream([response("1"), NotFound("lost")])
    assert ["item 1", "not_found: lost"] == await answers(ScriptedService(stream), "stream")


async def test_closes_the_stream_of_a_client_that_leaves() -> None:
    """Closing the frontend's generator closes the service's stream."""
    stream = FakeStream([response("1"), response("2")])
    frontend: Frontend[str, str] = Frontend(TextCodec(), ScriptedService(stream))
    generator = frontend("stream")
    assert "item 1" == await anext(generator)
    await generator.aclose()
    assert 1 == stream.closed


async def test_a_stream_without_aclose_is_fine() -> None:
    """An iterator that cannot be closed is read to its end."""

    class Plain:
        def __init__(self) -> None:
            self._left = 1

        def __aiter__(self) -> AsyncIterator[InferResponse]:
            return self

        async def __anext__(self) -> InferResponse:
            if not self._left:
                raise StopAsyncIteration
            self._left -= 1
            return response("1")

    assert ["item 1"] == await answers(ScriptedService(Plain()), "stream")


async def test_stamps_answers_with_the_request_id() -> None:
    """Replies, errors and the first item of a stream carry the id; refusals have none."""

    def stamp(answer: str, request_id: str) -> str:
        return f"{answer} [{request_id}]"

    assert ["reply True [mine]"] == await answers(ScriptedService(True), "known", stamp=stamp)
    failed = await answers(ScriptedService(NotFound("gone")), "known", stamp=stamp)
    assert ["not_found: gone [mine]"] == failed
    stream = FakeStream([response("1"), response("2")])
    first, second = await answers(ScriptedService(stream), "stream", stamp=stamp)
    assert first.startswith("item 1 [")
    assert "item 2" == second
    assert ["invalid_argument: '?' is no call"] == await answers(
        ScriptedService(), "?", stamp=stamp
    )


def test_http_and_grpc_answers_are_stamped_in_their_own_form() -> None:
    """What becomes a header over HTTP, trailing metadata over gRPC; everything else stays."""
    http = stamp_http(HttpResponse(200, Headers([("A", "b")]), (b"x",), compressible=True), "id")
    expected = HttpResponse(200, Headers([("A", "b")]), (b"x",), True, "id")
    assert expected == http
    grpc = stamp_grpc(GrpcResponse((b"x",), metadata=(("a", "b"),)), "id")
    assert GrpcResponse((b"x",), metadata=(("a", "b"), ("x-request-id", "id"))) == grpc


class Gate:
    """Lets everything through but what is in *full* and answers of *long*; counts who is in."""

    def __init__(self, *, full: frozenset[str] = frozenset(), long: str = "") -> None:
        self.max_calls = 8
        self.inside = 0
        self._full = full
        self._long = long

    @asynccontextmanager
    async def admit(self, wire: str, /) -> AsyncIterator[None]:
        if wire in self._full:
            raise Overloaded("no place")
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1

    def check_response(self, answer: str, /) -> None:
        if answer == self._long:
            raise TooLarge("too long")

    def hold(self, _answer: str, /) -> AbstractContextManager[None]:
        return nullcontext()


async def session_of(service: Any, *wires: str, gate: Gate | None = None) -> list[str]:
    async def coming() -> AsyncIterator[str]:
        for wire in wires:
            yield wire

    frontend: Frontend[str, str] = Frontend(TextCodec(), service)
    return [answer async for answer in frontend.session(coming(), gate or Gate())]


async def test_answers_the_messages_of_a_session_in_their_order() -> None:
    """Each message is a call; one that cannot be read is answered in its place, and all goes on."""
    service = ScriptedService(True, False)
    found = await session_of(service, "live", "?", "live")
    assert ["reply True", "invalid_argument: '?' is no call", "reply False"] == found


async def test_numbers_sessions() -> None:
    """The calls of one stream carry its number, those of another another one."""
    service = ScriptedService(always=True)
    frontend: Frontend[str, str] = Frontend(TextCodec(), service)

    async def coming(*wires: str) -> AsyncIterator[str]:
        for wire in wires:
            yield wire

    for wires in (("live", "live"), ("live",)):
        assert [each async for each in frontend.session(coming(*wires), Gate())]
    first, second, other = (call.context.session for call in service.calls)
    assert first is not None
    assert first == second
    assert other not in (None, first)


async def test_a_message_without_a_place_is_refused_in_the_session() -> None:
    """What the transport refuses is answered, and the stream goes on."""
    gate = Gate(full=frozenset({"known"}))
    found = await session_of(ScriptedService(True), "known", "live", gate=gate)
    assert ["overloaded: no place", "reply True"] == found
    assert 0 == gate.inside


async def test_an_answer_that_is_too_large_is_refused_in_the_session() -> None:
    """An answer the transport cannot send becomes an error, and the call ends there."""
    stream = FakeStream([response("1"), response("2"), response("3")])
    gate = Gate(long="item 2")
    assert ["item 1", "too_large: too long"] == await session_of(
        ScriptedService(stream), "stream", gate=gate
    )
    assert 1 == stream.closed
    assert 0 == gate.inside


class WordyCodec(TextCodec, StreamCodec[str, str]):
    """Has words of its own for how streams end."""

    first_error_ends = True

    def encode_end(self, call: StreamInferRequest, last: InferResponse | None, /) -> str | None:
        return None if last is not None and last.final else f"end after {last and last.id}"

    def encode_late_error(self, call: StreamInferRequest, error: GatewayError, /) -> str:
        return f"late {error.message}"


async def wordy(*items: InferResponse | BaseException) -> list[str]:
    service = ScriptedService(FakeStream(items))
    frontend: Frontend[str, str] = Frontend(WordyCodec(), service)
    return [answer async for answer in frontend("stream")]


async def test_a_codec_may_have_words_for_the_end_of_a_stream() -> None:
    """They come after the last answer, and alone when there was none; nothing may be said."""
    more = InferResponse(model=ModelRef("m"), outputs=(), id="1", final=False)
    assert ["item 1", "end after 1"] == await wordy(more)
    assert ["end after None"] == await wordy()
    assert ["item 2"] == await wordy(response("2"))


async def test_a_codec_may_have_words_for_an_error_after_an_answer() -> None:
    """Before the first answer an error is said as always."""
    assert ["item 1", "late lost"] == await wordy(response("1"), NotFound("lost"))
    assert ["not_found: lost"] == await wordy(NotFound("lost"))


def failed(*, final: bool = False) -> InferResponse:
    return InferResponse(model=ModelRef("m"), outputs=(), final=final, error=NotFound("lost"))


async def test_an_answer_that_is_an_error_ends_a_stream_that_cannot_go_on() -> None:
    """In a protocol without words for it, and where the first answer decides what the stream is."""
    stream = FakeStream([response("1"), failed(), response("2")])
    assert ["item 1", "not_found: lost"] == await answers(ScriptedService(stream), "stream")
    assert 1 == stream.closed
    assert ["not_found: lost"] == await wordy(failed(), response("2"))


async def test_an_answer_that_is_an_error_is_one_among_others() -> None:
    """Where the protocol has words for it, the stream goes on."""
    assert ["item 1", "item ", "item 2"] == await wordy(response("1"), failed(), response("2"))


async def test_refuses_a_message_with_its_call() -> None:
    """A transport that refuses what it has read is answered by the codec that knows the call."""
    refused: list[str] = []
    frontend: Frontend[str, str] = Frontend(
        TextCodec(), ScriptedService(), refused=lambda _name, error: refused.append(error.message)
    )
    for wire in ("live", "?", "bug"):
        assert "overloaded: full" == frontend.reject_message(wire, Overloaded("full"))
    assert ["full"] * 3 == refused


class HeavyCodec(TextCodec):
    """Calls are numbers: so many items of work."""

    def decode_call(self, wire: str, _request_id: str = "", /) -> Call[Any]:
        charge(float(wire))
        self.decoded_by = threading.get_ident()
        return ServerLiveRequest(context=Context(request_id=wire))

    def encode_reply(self, call: Call[Any], reply: Any, /) -> str:
        charge(float(reply))
        return f"{threading.get_ident()}"


@pytest.mark.parametrize("items", ["1", "1000000"])
async def test_long_messages_are_read_and_written_on_another_thread(items: str) -> None:
    """Short ones on the event loop."""
    codec = HeavyCodec()
    frontend: Frontend[str, str] = Frontend(codec, ScriptedService(items))
    written_by = int(str(await frontend.handle(items)))
    is_here = items == "1"
    assert is_here is (codec.decoded_by == threading.get_ident())
    assert is_here is (written_by == threading.get_ident())


async def test_what_is_wrong_with_a_long_message_is_a_refusal() -> None:
    """An error on the other thread is answered as one on the event loop."""
    refused: list[str] = []

    class Broken(HeavyCodec):
        def decode_call(self, wire: str, _request_id: str = "", /) -> Call[Any]:
            charge(1e9)
            raise MalformedMessage("broken")

    frontend: Frontend[str, str] = Frontend(
        Broken(), ScriptedService(), refused=lambda codec, error: refused.append(error.message)
    )
    assert "invalid_argument: broken" == await frontend.handle("x")
    assert ["broken"] == refused


async def test_a_request_that_blocks_the_loop_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """With protocol and model; short requests are not."""
    times = iter([0.0, 0.05, 1.0, 1.2, 1.2])
    monkeypatch.setattr("gateway.frontend.monotonic", lambda: next(times))
    blocked: list[tuple[str, str, float]] = []

    class Modelled(TextCodec):
        def decode_call(self, wire: str, _request_id: str = "", /) -> Call[Any]:
            return InferRequest(model=ModelRef("m"))

    frontend: Frontend[str, str] = Frontend(
        Modelled(), ScriptedService("x"), blocked=lambda *found: blocked.append(found)
    )
    assert "reply x" == await frontend.handle("live")
    assert [("text", "m", 0.2)] == [(codec, model, round(s, 6)) for codec, model, s in blocked]
