from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from typing import Any

import pytest

from gateway.frontend import (
    Frontend,
    attach_grpc_request_id,
    attach_http_request_id,
)
from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ModelConfigRequest,
    ModelMetadataRequest,
    ServerLiveRequest,
    StreamInferRequest,
)
from gateway.ir.context import Context, ModelRef
from gateway.ir.datatypes import Datatype
from gateway.ir.errors import (
    ErrorCode,
    GatewayError,
    MalformedMessage,
    ModelNotFound,
    NotFound,
    Overloaded,
    TooLarge,
)
from gateway.ir.expected_inputs import compare_inputs
from gateway.ir.metadata import ModelConfiguration, ModelMetadata, TensorMetadata
from gateway.ir.work import charge
from gateway.tapped_frontend import TappedFrontend
from gateway.telemetry.tapped_call import TappedCall
from gateway.wire.codec import StreamCodec
from gateway.wire.grpc import GrpcResponse
from gateway.wire.http import Headers, HttpResponse
from tests.fakes import FakeCodec, FakeStream, ScriptedService, settle


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
    frontend: Frontend[str, str] = Frontend(
        Naming(), service, attach_request_id=lambda text, one: one
    )
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
    found = await answers(
        service, "?", on_rejected=lambda name, error: refused.append((name, error))
    )
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
            self._remaining = 1

        def __aiter__(self) -> AsyncIterator[InferResponse]:
            return self

        async def __anext__(self) -> InferResponse:
            if not self._remaining:
                raise StopAsyncIteration
            self._remaining -= 1
            return response("1")

    assert ["item 1"] == await answers(ScriptedService(Plain()), "stream")


async def test_responses_have_the_request_id() -> None:
    """Replies, errors, refusals and the first item of a stream carry the id."""

    def attach_id(answer: str, request_id: str) -> str:
        return f"{answer} [{request_id}]"

    assert ["reply True [mine]"] == await answers(
        ScriptedService(True), "known", attach_request_id=attach_id
    )
    failed = await answers(ScriptedService(NotFound("gone")), "known", attach_request_id=attach_id)
    assert ["not_found: gone [mine]"] == failed
    stream = FakeStream([response("1"), response("2")])
    first, second = await answers(ScriptedService(stream), "stream", attach_request_id=attach_id)
    assert first.startswith("item 1 [")
    assert "item 2" == second
    refused: list[GatewayError] = []
    (text,) = await answers(
        ScriptedService(),
        "?",
        attach_request_id=attach_id,
        on_rejected=lambda _name, error: refused.append(error),
    )
    assert f"invalid_argument: '?' is no call [{refused[0].request_id}]" == text
    (text,) = await answers(
        ScriptedService(), "?", attach_request_id=attach_id, read_request_id=lambda _wire: "own"
    )
    assert "invalid_argument: '?' is no call [own]" == text


def test_http_and_grpc_responses_have_the_request_id_in_their_own_form() -> None:
    """What becomes a header over HTTP, trailing metadata over gRPC; everything else stays."""
    http = attach_http_request_id(
        HttpResponse(200, Headers([("A", "b")]), (b"x",), is_compressible=True), "id"
    )
    expected = HttpResponse(200, Headers([("A", "b")]), (b"x",), True, "id")
    assert expected == http
    grpc = attach_grpc_request_id(GrpcResponse((b"x",), metadata=(("a", "b"),)), "id")
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


class Model:
    """A model whose first stream ends last, and its configuration."""

    def __init__(self, configuration: ModelConfiguration | GatewayError) -> None:
        self.questions = 0
        self._configuration = configuration
        self._started = 0
        self._second_ended = asyncio.Event()

    async def __call__(self, call: Call[Any]) -> Any:
        if isinstance(call, ModelConfigRequest):
            self.questions += 1
            if isinstance(self._configuration, GatewayError):
                raise self._configuration
            return self._configuration
        self._started += 1
        return self._replies(self._started % 2)

    async def _replies(self, is_first: int) -> AsyncIterator[InferResponse]:
        if is_first:
            await self._second_ended.wait()
            self._second_ended.clear()
            await settle()
            yield response("first")
        else:
            self._second_ended.set()
            yield response("second")


DECOUPLED = ModelConfiguration({"model_transaction_policy": {"decoupled": True}})


@pytest.mark.parametrize(
    ("configuration", "expected"),
    [
        (DECOUPLED, ["item second", "item first"]),
        (ModelConfiguration({}), ["item first", "item second"]),
        (ModelNotFound("m"), ["item first", "item second"]),
    ],
)
async def test_only_decoupled_models_reply_to_a_session_in_any_order(
    configuration: ModelConfiguration | GatewayError, expected: list[str]
) -> None:
    """The model's transaction policy is asked for once, and a failure keeps the order."""
    model = Model(configuration)
    frontend: Frontend[str, str] = Frontend(TextCodec(), model)

    async def coming() -> AsyncIterator[str]:
        yield "stream"
        yield "stream"

    for _ in range(2):
        assert expected == [each async for each in frontend.session(coming(), Gate())]
    assert 1 == model.questions


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

    def is_terminal(self, _call: StreamInferRequest, _error: GatewayError, /) -> bool:
        return True

    def encode_end(self, call: StreamInferRequest, last: InferResponse | None, /) -> str | None:
        return None if last is not None and last.is_final else f"end after {last and last.id}"

    def encode_late_error(self, call: StreamInferRequest, error: GatewayError, /) -> str:
        return f"late {error.message}"


async def wordy(*items: InferResponse | BaseException) -> list[str]:
    service = ScriptedService(FakeStream(items))
    frontend: Frontend[str, str] = Frontend(WordyCodec(), service)
    return [answer async for answer in frontend("stream")]


async def test_a_codec_may_have_words_for_the_end_of_a_stream() -> None:
    """They come after the last answer, and alone when there was none; nothing may be said."""
    more = InferResponse(model=ModelRef("m"), outputs=(), id="1", is_final=False)
    assert ["item 1", "end after 1"] == await wordy(more)
    assert ["end after None"] == await wordy()
    assert ["item 2"] == await wordy(response("2"))


async def test_a_codec_may_have_words_for_an_error_after_an_answer() -> None:
    """Before the first answer an error is said as always."""
    assert ["item 1", "late lost"] == await wordy(response("1"), NotFound("lost"))
    assert ["not_found: lost"] == await wordy(NotFound("lost"))


def failed(*, final: bool = False) -> InferResponse:
    return InferResponse(model=ModelRef("m"), outputs=(), is_final=final, error=NotFound("lost"))


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
        TextCodec(),
        ScriptedService(),
        on_rejected=lambda _name, error: refused.append(error.message),
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
        Broken(), ScriptedService(), on_rejected=lambda codec, error: refused.append(error.message)
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
        Modelled(), ScriptedService("x"), on_blocked=lambda *found: blocked.append(found)
    )
    assert "reply x" == await frontend.handle("live")
    assert [("text", "m", 0.2)] == [(codec, model, round(s, 6)) for codec, model, s in blocked]


class ListTap:
    """A tap that keeps everything, or nothing."""

    def __init__(self, *, chooses: bool = True) -> None:
        self.chooses = chooses
        self.exchanges: list[TappedCall] = []
        self.refusals: list[tuple[str, Any, str, Any]] = []

    def begin(self, call: Call[Any], /) -> TappedCall | None:
        return TappedCall(call, 0.0) if self.chooses else None

    def end(self, exchange: TappedCall, /) -> None:
        self.exchanges.append(exchange)

    def rejected(self, codec: str, wire: Any, error: GatewayError, response: Any, /) -> None:
        self.refusals.append((codec, wire, error.message, response))


async def tapped(tap: ListTap, service: Any, wire: str) -> list[str]:
    frontend: Frontend[str, str] = TappedFrontend(TextCodec(), service, tap)
    return [answer async for answer in frontend(wire)]


async def test_a_tap_receives_call_reply_and_response() -> None:
    """A unary call ends with its reply and the message to the client."""
    tap = ListTap()
    assert ["reply True"] == await tapped(tap, ScriptedService(True), "live")
    (exchange,) = tap.exchanges
    assert type(exchange.call) is ServerLiveRequest
    replies: list[Any] = [reply for _, reply in exchange.items]
    assert (replies, exchange.responses) == ([True], ["reply True"])
    assert exchange.error is None


async def test_a_tap_receives_the_items_of_a_stream() -> None:
    """Each reply of a stream has its time, and an error ends it."""
    tap = ListTap()
    stream = FakeStream([response("1"), response("2"), NotFound("gone")])
    responses = await tapped(tap, ScriptedService(stream), "stream")
    (exchange,) = tap.exchanges
    assert [item.id for _, item in exchange.items] == ["1", "2"]
    assert exchange.error == (ErrorCode.NOT_FOUND, "gone")
    assert exchange.responses == responses
    assert stream.closed


async def test_a_tap_receives_errors_and_refusals() -> None:
    """An error of the service ends the call, and a message that is no call is refused."""
    tap = ListTap()
    await tapped(tap, ScriptedService(NotFound("gone")), "live")
    assert tap.exchanges[0].error == (ErrorCode.NOT_FOUND, "gone")
    responses = await tapped(tap, ScriptedService(), "rubbish")
    assert tap.refusals == [("text", "rubbish", "'rubbish' is no call", responses[0])]


async def test_a_tap_that_chooses_nothing_changes_nothing() -> None:
    """The responses are those of a frontend without a tap."""
    tap = ListTap(chooses=False)
    assert ["reply True"] == await tapped(tap, ScriptedService(True), "live")
    items = [response("1")]
    assert ["item 1"] == await tapped(tap, ScriptedService(FakeStream(items)), "stream")
    assert tap.exchanges == []


async def test_a_broken_tap_costs_no_response() -> None:
    """A defect of a tap is logged, and the client gets its response."""

    class Broken(ListTap):
        def end(self, exchange: TappedCall, /) -> None:
            raise ZeroDivisionError

    assert ["reply True"] == await tapped(Broken(), ScriptedService(True), "live")


async def test_a_client_that_leaves_ends_a_tapped_call() -> None:
    """A cancelled call is recorded as cancelled."""
    tap = ListTap()
    task = asyncio.ensure_future(tapped(tap, ScriptedService(), "live"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert tap.exchanges[0].error == (ErrorCode.CANCELLED, "the client disconnected")


class LongInference(TextCodec):
    """Requests are names of inputs, and take long to read."""

    def decode_call(self, wire: str, _request_id: str = "", /) -> Call[Any]:
        compare_inputs(ModelRef("m"), wire.split(","))
        charge(1e9)
        return InferRequest(model=ModelRef("m"))


async def test_a_long_message_with_other_inputs_is_refused() -> None:
    """The model is asked once for its inputs; the elements of other ones are not read."""
    model_metadata = ModelMetadata(
        name="m", platform="python", inputs=(TensorMetadata("a", Datatype.FP32, (-1,)),)
    )

    def answer(call: Call[Any]) -> Any:
        return model_metadata if type(call) is ModelMetadataRequest else "x"

    service = ScriptedService(always=answer)
    frontend: Frontend[str, str] = Frontend(LongInference(), service)
    expected = "invalid_argument: model 'm' has no input 'b'; its inputs are 'a'"
    assert expected == await frontend.handle("a,b")
    assert "reply x" == await frontend.handle("a")
    assert [ModelMetadataRequest, InferRequest] == [type(call) for call in service.calls]
