from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.api.protocol import ServerReadingCodec, StreamCodec
from gateway.api.tap import TappedCall
from gateway.frontend.frontend import Frontend
from gateway.ir.bodies.streams import HeldReply
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
from gateway.ir.errors import (
    ErrorCode,
    GatewayError,
    MalformedMessage,
    ModelNotFound,
    NotFound,
    Overloaded,
    TooLarge,
    Unsupported,
)
from gateway.ir.metadata import ModelConfiguration, ModelMetadata, TensorMetadata
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.expected_inputs import compare_inputs
from gateway.ir.tensors.tensor import items_tensor
from gateway.ir.work import charge
from gateway.transports.memory_budget import UNLIMITED
from gateway.transports.reservation import Reservation
from gateway.wire.grpc import GrpcResponse
from gateway.wire.heads.request_id import attach_grpc_request_id, attach_http_request_id
from gateway.wire.http import Headers, HttpResponse
from tests.fakes import FakeCodec, FakeStream, ScriptedService, settle


class TextCodec(FakeCodec):
    """Calls are texts: "live", "stream", "known" and "bug"; any other text is malformed."""

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


async def responses_of(service: Any, wire: str, **settings: Any) -> list[str]:
    frontend: Frontend[str, str] = Frontend(TextCodec(), service, **settings)
    return [response async for response in frontend(wire)]


def infer_response(number: str) -> InferResponse:
    output = items_tensor("y", (1,), [b"x"])
    return InferResponse(model=ModelRef("m"), outputs=(output,), id=number)


async def test_encodes_the_reply() -> None:
    """A request is decoded, its call handled, and the reply encoded."""
    assert ["reply True"] == await responses_of(ScriptedService(True), "live")


async def test_a_call_without_a_request_id_gets_one() -> None:
    """Two calls get different ids."""
    service = ScriptedService(True, True)
    frontend: Frontend[str, str] = Frontend(TextCodec(), service)
    for _ in range(2):
        assert [response async for response in frontend("live")]
    first, second = (call.context.request_id for call in service.calls)
    assert first
    assert first != second


async def test_a_codec_may_set_the_request_id_itself() -> None:
    """The id is an argument; a call that the codec leaves without one gets it from the frontend."""

    class Naming(TextCodec):
        def decode_call(self, wire: str, request_id: str = "", /) -> Call[Any]:
            if wire == "named":
                return ServerLiveRequest(context=Context(request_id=request_id + "!"))
            return super().decode_call(wire)

    service = ScriptedService(True, True, True)
    frontend: Frontend[str, str] = Frontend(Naming(), service, attach_headers=lambda text, one: one)
    found = [await frontend.handle(wire) for wire in ("named", "live", "known")]
    assert found == [call.context.request_id for call in service.calls]
    assert found[0] == f"{found[1]}".replace("-2", "-1") + "!"
    assert "mine" == found[2]


async def test_keeps_the_request_id_of_the_client() -> None:
    """A request id in the request is not replaced."""
    service = ScriptedService(True)
    await responses_of(service, "known")
    assert "mine" == service.calls[0].context.request_id


async def test_a_malformed_request_is_rejected_and_reported() -> None:
    """It never reaches the service; the codec encodes the error."""
    refused: list[tuple[str, GatewayError]] = []
    service = ScriptedService()
    found = await responses_of(
        service, "?", on_rejected=lambda name, error: refused.append((name, error))
    )
    assert ["invalid_argument: '?' is no call"] == found
    assert [("text", "'?' is no call")] == [(name, error.message) for name, error in refused]
    assert [] == service.calls


async def test_encodes_an_error_of_the_service() -> None:
    """The codec that decoded the call encodes the error."""
    assert ["not_found: gone"] == await responses_of(ScriptedService(NotFound("gone")), "live")


async def test_hides_the_text_of_an_internal_error() -> None:
    """Only the text of a GatewayError is sent to the client."""
    expected = ["internal: internal error of the gateway"]
    assert expected == await responses_of(ScriptedService(ValueError("secret")), "live")
    assert expected == await responses_of(ScriptedService(), "bug")


async def test_encodes_each_item_of_a_stream_and_closes_it() -> None:
    """The stream is closed after its last item."""
    stream = FakeStream([infer_response("1"), infer_response("2")])
    assert ["item 1", "item 2"] == await responses_of(ScriptedService(stream), "stream")
    assert 1 == stream.closed


async def test_encodes_an_error_within_a_stream() -> None:
    """An error after the first item is the last response."""
    stream = FakeStream([infer_response("1"), NotFound("lost")])
    assert ["item 1", "not_found: lost"] == await responses_of(ScriptedService(stream), "stream")


async def test_closes_the_stream_of_a_client_that_leaves() -> None:
    """Closing the frontend's generator closes the service's stream."""
    stream = FakeStream([infer_response("1"), infer_response("2")])
    frontend: Frontend[str, str] = Frontend(TextCodec(), ScriptedService(stream))
    generator = frontend("stream")
    assert "item 1" == await anext(generator)
    await generator.aclose()
    assert 1 == stream.closed


async def test_a_stream_without_aclose_is_read_to_its_end() -> None:
    """An iterator without `aclose` is accepted."""

    class Plain:
        def __init__(self) -> None:
            self._remaining = 1

        def __aiter__(self) -> AsyncIterator[InferResponse]:
            return self

        async def __anext__(self) -> InferResponse:
            if not self._remaining:
                raise StopAsyncIteration
            self._remaining -= 1
            return infer_response("1")

    assert ["item 1"] == await responses_of(ScriptedService(Plain()), "stream")


async def test_responses_have_the_request_id() -> None:
    """Replies, errors, rejections and the first item of a stream have the id."""

    def attach_id(text: str, request_id: str) -> str:
        return f"{text} [{request_id}]"

    assert ["reply True [mine]"] == await responses_of(
        ScriptedService(True), "known", attach_headers=attach_id
    )
    failed = await responses_of(
        ScriptedService(NotFound("gone")), "known", attach_headers=attach_id
    )
    assert ["not_found: gone [mine]"] == failed
    stream = FakeStream([infer_response("1"), infer_response("2")])
    first, second = await responses_of(ScriptedService(stream), "stream", attach_headers=attach_id)
    assert first.startswith("item 1 [")
    assert "item 2" == second
    refused: list[GatewayError] = []
    (text,) = await responses_of(
        ScriptedService(),
        "?",
        attach_headers=attach_id,
        on_rejected=lambda _name, error: refused.append(error),
    )
    assert f"invalid_argument: '?' is no call [{refused[0].request_id}]" == text
    (text,) = await responses_of(
        ScriptedService(), "?", attach_headers=attach_id, read_request_id=lambda _wire: "own"
    )
    assert "invalid_argument: '?' is no call [own]" == text


def test_the_request_id_is_a_header_or_trailing_metadata() -> None:
    """It is a header over HTTP and trailing metadata over gRPC; all else stays the same."""
    http = attach_http_request_id(
        HttpResponse(200, Headers([("A", "b")]), (b"x",), is_compressible=True), "id"
    )
    expected = HttpResponse(200, Headers([("A", "b")]), (b"x",), True, "id")
    assert expected == http
    grpc = attach_grpc_request_id(GrpcResponse((b"x",), metadata=(("a", "b"),)), "id")
    assert GrpcResponse((b"x",), metadata=(("a", "b"), ("x-request-id", "id"))) == grpc


class Gate:
    """Admits all messages but *full* and all responses but *long*; counts the admitted messages."""

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

    def check_response(self, response: str, /) -> None:
        if response == self._long:
            raise TooLarge("too long")

    def hold(self, _response: str, /) -> HeldReply:
        return Reservation(UNLIMITED, None)


async def session_of(service: Any, *wires: str, gate: Gate | None = None) -> list[str]:
    async def messages() -> AsyncIterator[str]:
        for wire in wires:
            yield wire

    frontend: Frontend[str, str] = Frontend(TextCodec(), service)
    return [response async for response in frontend.session(messages(), gate or Gate())]


async def test_session_messages_are_handled_in_order() -> None:
    """A malformed message gets an error in its position, and the session continues."""
    service = ScriptedService(True, False)
    found = await session_of(service, "live", "?", "live")
    assert ["reply True", "invalid_argument: '?' is no call", "reply False"] == found


async def test_calls_have_the_number_of_their_session() -> None:
    """Calls of one session share the number; another session has another one."""
    service = ScriptedService(always=True)
    frontend: Frontend[str, str] = Frontend(TextCodec(), service)

    async def messages(*wires: str) -> AsyncIterator[str]:
        for wire in wires:
            yield wire

    for wires in (("live", "live"), ("live",)):
        assert [each async for each in frontend.session(messages(*wires), Gate())]
    first, second, other = (call.context.session for call in service.calls)
    assert first is not None
    assert first == second
    assert other not in (None, first)


class Model:
    """A model whose first stream ends last, and its configuration."""

    def __init__(self, configuration: ModelConfiguration | GatewayError) -> None:
        self.config_requests = 0
        self._configuration = configuration
        self._started = 0
        self._second_ended = asyncio.Event()

    async def __call__(self, call: Call[Any]) -> Any:
        if isinstance(call, ModelConfigRequest):
            self.config_requests += 1
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
            yield infer_response("first")
        else:
            self._second_ended.set()
            yield infer_response("second")


DECOUPLED = ModelConfiguration({"model_transaction_policy": {"decoupled": True}})


@pytest.mark.parametrize(
    ("configuration", "expected"),
    [
        (DECOUPLED, ["item second", "item first"]),
        (ModelConfiguration({}), ["item first", "item second"]),
        (ModelNotFound("m"), ["item first", "item second"]),
    ],
)
async def test_only_decoupled_models_may_reply_out_of_order(
    configuration: ModelConfiguration | GatewayError, expected: list[str]
) -> None:
    """The model configuration is requested once; without one, the order is kept."""
    model = Model(configuration)
    frontend: Frontend[str, str] = Frontend(TextCodec(), model)

    async def messages() -> AsyncIterator[str]:
        yield "stream"
        yield "stream"

    for _ in range(2):
        assert expected == [each async for each in frontend.session(messages(), Gate())]
    assert 1 == model.config_requests


async def test_a_rejected_message_does_not_end_the_session() -> None:
    """A message that is not admitted gets an error, and the session continues."""
    gate = Gate(full=frozenset({"known"}))
    found = await session_of(ScriptedService(True), "known", "live", gate=gate)
    assert ["overloaded: no place", "reply True"] == found
    assert 0 == gate.inside


async def test_an_oversized_reply_becomes_an_error_in_the_session() -> None:
    """A reply that the transport cannot send ends its call."""
    stream = FakeStream([infer_response("1"), infer_response("2"), infer_response("3")])
    gate = Gate(long="item 2")
    assert ["item 1", "too_large: too long"] == await session_of(
        ScriptedService(stream), "stream", gate=gate
    )
    assert 1 == stream.closed
    assert 0 == gate.inside


class TerminalCodec(TextCodec, StreamCodec[str, str]):
    """Has messages of its own for how streams end."""

    def is_terminal(self, _call: StreamInferRequest, _error: GatewayError, /) -> bool:
        return True

    def encode_end(self, call: StreamInferRequest, last: InferResponse | None, /) -> str | None:
        return None if last is not None and last.is_final else f"end after {last and last.id}"

    def encode_late_error(self, call: StreamInferRequest, error: GatewayError, /) -> str:
        return f"late {error.message}"


async def terminal_responses(*items: InferResponse | BaseException) -> list[str]:
    service = ScriptedService(FakeStream(items))
    frontend: Frontend[str, str] = Frontend(TerminalCodec(), service)
    return [response async for response in frontend("stream")]


async def test_a_codec_may_encode_the_end_of_a_stream() -> None:
    """The end follows the last item, is the only message of an empty stream, or is left out."""
    more = InferResponse(model=ModelRef("m"), outputs=(), id="1", is_final=False)
    assert ["item 1", "end after 1"] == await terminal_responses(more)
    assert ["end after None"] == await terminal_responses()
    assert ["item 2"] == await terminal_responses(infer_response("2"))


class MarkingCodec(TerminalCodec):
    """Writes the mark of the end as an item."""

    def writes_end_mark(self, _call: StreamInferRequest, /) -> bool:
        return True


async def test_an_item_that_only_marks_the_end_is_not_written() -> None:
    """A client that reads the output of each item found none in the last one."""
    more = infer_response("1").changed(is_final=False)
    mark = InferResponse(model=ModelRef("m"), outputs=(), id="2")
    assert ["item 1", "end after 1"] == await terminal_responses(more, mark)
    assert ["end after None"] == await terminal_responses(mark)
    assert ["item 1"] == await responses_of(ScriptedService(FakeStream([more, mark])), "stream")
    service = ScriptedService(FakeStream([more, mark]))
    frontend: Frontend[str, str] = Frontend(MarkingCodec(), service)
    assert ["item 1", "item 2"] == [response async for response in frontend("stream")]


async def test_a_codec_may_encode_late_errors_differently() -> None:
    """An error before the first item has the usual form."""
    assert ["item 1", "late lost"] == await terminal_responses(
        infer_response("1"), NotFound("lost")
    )
    assert ["not_found: lost"] == await terminal_responses(NotFound("lost"))


def failed(*, final: bool = False) -> InferResponse:
    return InferResponse(model=ModelRef("m"), outputs=(), is_final=final, error=NotFound("lost"))


async def test_an_error_item_may_end_its_stream() -> None:
    """It does so in a protocol without error items, and as the first item of a terminal stream."""
    stream = FakeStream([infer_response("1"), failed(), infer_response("2")])
    assert ["item 1", "not_found: lost"] == await responses_of(ScriptedService(stream), "stream")
    assert 1 == stream.closed
    assert ["not_found: lost"] == await terminal_responses(failed(), infer_response("2"))


async def test_an_error_item_may_be_followed_by_others() -> None:
    """In a protocol with error items, the stream continues."""
    assert ["item 1", "item ", "item 2"] == await terminal_responses(
        infer_response("1"), failed(), infer_response("2")
    )


class PartlyWritingCodec(TerminalCodec):
    """Cannot write items whose id is "odd"."""

    def encode_item(self, call: StreamInferRequest, item: InferResponse, /) -> str:
        if item.error is not None:
            return f"error {item.error.message} final={item.is_final}"
        if item.id == "odd":
            raise Unsupported("no such item")
        return super().encode_item(call, item)


async def test_an_item_that_cannot_be_written_is_an_error_and_the_stream_continues() -> None:
    """The refusal of one item lost all later ones."""
    items = [infer_response(each).changed(is_final=False) for each in ("1", "odd", "2")]
    stream = FakeStream(items)
    frontend: Frontend[str, str] = Frontend(PartlyWritingCodec(), ScriptedService(stream))
    expected = ["item 1", "error no such item final=False", "item 2", "end after 2"]
    assert expected == [response async for response in frontend("stream")]


async def test_a_first_item_that_cannot_be_written_ends_a_terminal_stream() -> None:
    """It has a status, so that the response is no stream."""
    stream = FakeStream([infer_response("odd"), infer_response("1")])
    frontend: Frontend[str, str] = Frontend(PartlyWritingCodec(), ScriptedService(stream))
    assert ["unsupported: no such item"] == [response async for response in frontend("stream")]
    assert 1 == stream.closed


async def test_rejects_a_message_in_the_form_of_its_call() -> None:
    """The codec that decodes the call encodes the error of the transport."""
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
    """Calls are numbers: their items of work."""

    def decode_call(self, wire: str, _request_id: str = "", /) -> Call[Any]:
        charge(float(wire))
        self.decoded_by = threading.get_ident()
        return ServerLiveRequest(context=Context(request_id=wire))

    def encode_reply(self, call: Call[Any], reply: Any, /) -> str:
        charge(float(reply))
        return f"{threading.get_ident()}"


@pytest.mark.parametrize("items", ["1", "1000000"])
async def test_long_messages_are_processed_on_another_thread(items: str) -> None:
    """Short messages are decoded and encoded on the event loop."""
    codec = HeavyCodec()
    frontend: Frontend[str, str] = Frontend(codec, ScriptedService(items))
    written_by = int(str(await frontend.handle(items)))
    is_on_loop = items == "1"
    assert is_on_loop is (codec.decoded_by == threading.get_ident())
    assert is_on_loop is (written_by == threading.get_ident())


async def test_a_malformed_long_message_is_rejected() -> None:
    """An error on the other thread is encoded as one on the event loop."""
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
    """The report has protocol, model and time."""
    times = iter([0.0, 0.05, 1.0, 1.2, 1.2])
    for module in ("frontend", "call_reader"):
        monkeypatch.setattr(f"gateway.frontend.{module}.monotonic", lambda: next(times))
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
    """A tap that records all calls, or none."""

    def __init__(self, *, chooses: bool = True) -> None:
        self.chooses = chooses
        self.exchanges: list[TappedCall] = []
        self.rejections: list[tuple[str, Any, str, Any]] = []

    def begin(self, call: Call[Any], /) -> TappedCall | None:
        return TappedCall(call, 0.0) if self.chooses else None

    def end(self, exchange: TappedCall, /) -> None:
        self.exchanges.append(exchange)

    def rejected(self, codec: str, wire: Any, error: GatewayError, response: Any, /) -> None:
        self.rejections.append((codec, wire, error.message, response))


async def tapped(tap: ListTap, service: Any, wire: str) -> list[str]:
    frontend: Frontend[str, str] = Frontend(TextCodec(), service, tap=tap)
    return [response async for response in frontend(wire)]


async def test_a_tap_receives_call_reply_and_response() -> None:
    """A unary call ends with its reply and its response."""
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
    stream = FakeStream([infer_response("1"), infer_response("2"), NotFound("gone")])
    responses = await tapped(tap, ScriptedService(stream), "stream")
    (exchange,) = tap.exchanges
    assert [item.id for _, item in exchange.items] == ["1", "2"]
    assert exchange.error == (ErrorCode.NOT_FOUND, "gone")
    assert exchange.responses == responses
    assert stream.closed


async def test_a_tap_receives_errors_and_rejections() -> None:
    """An error of the service ends the call; a malformed request is a rejection."""
    tap = ListTap()
    await tapped(tap, ScriptedService(NotFound("gone")), "live")
    assert tap.exchanges[0].error == (ErrorCode.NOT_FOUND, "gone")
    responses = await tapped(tap, ScriptedService(), "rubbish")
    assert tap.rejections == [("text", "rubbish", "'rubbish' is no call", responses[0])]


async def test_a_tap_that_ignores_a_call_records_nothing() -> None:
    """The responses are those of a frontend without a tap."""
    tap = ListTap(chooses=False)
    assert ["reply True"] == await tapped(tap, ScriptedService(True), "live")
    items = [infer_response("1")]
    assert ["item 1"] == await tapped(tap, ScriptedService(FakeStream(items)), "stream")
    assert tap.exchanges == []


async def test_a_failing_tap_does_not_affect_the_response() -> None:
    """The client gets its response."""

    class Broken(ListTap):
        def end(self, exchange: TappedCall, /) -> None:
            raise ZeroDivisionError

    assert ["reply True"] == await tapped(Broken(), ScriptedService(True), "live")


async def test_a_cancelled_call_is_recorded_as_cancelled() -> None:
    """A client that leaves ends the recorded call."""
    tap = ListTap()
    task = asyncio.ensure_future(tapped(tap, ScriptedService(), "live"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert tap.exchanges[0].error == (ErrorCode.CANCELLED, "the client disconnected")


class LongInference(TextCodec):
    """Requests are names of inputs, and take long to decode."""

    def decode_call(self, wire: str, _request_id: str = "", /) -> Call[Any]:
        compare_inputs(ModelRef("m"), wire.split(","))
        charge(1e9)
        return InferRequest(model=ModelRef("m"))


async def test_a_long_message_with_unknown_inputs_is_rejected() -> None:
    """The metadata is requested once; elements of unknown inputs are not read."""
    model_metadata = ModelMetadata(
        name="m", platform="python", inputs=(TensorMetadata("a", Datatype.FP32, (-1,)),)
    )

    def reply_to(call: Call[Any]) -> Any:
        return model_metadata if type(call) is ModelMetadataRequest else "x"

    service = ScriptedService(always=reply_to)
    frontend: Frontend[str, str] = Frontend(LongInference(), service)
    expected = "invalid_argument: model 'm' has no input 'b'; its inputs are 'a'"
    assert expected == await frontend.handle("a,b")
    assert "reply x" == await frontend.handle("a")
    assert [ModelMetadataRequest, InferRequest] == [type(call) for call in service.calls]


class LenientCodec(TextCodec, ServerReadingCodec[str, str]):
    """Servers of the dialect in a text read it; `most_lenient` reads every text but "broken"."""

    most_lenient = "any"

    def inferred_model(self, wire: str, /) -> ModelRef | None:
        return None if wire == "other" else ModelRef("m")

    def decode_for_server(
        self, wire: str, dialect: str, request_id: str = "", /
    ) -> Call[Any] | None:
        if dialect == "strict":
            return None
        if wire == "broken" or dialect not in (wire, self.most_lenient):
            raise MalformedMessage(f"{wire!r} is nothing for {dialect!r}")
        return InferRequest(model=ModelRef("m"), context=Context(request_id=request_id))


async def lenient_response(wire: str, dialect: str) -> tuple[str, list[type[Call[Any]]]]:
    """Return the response to *wire*, and the kinds of calls; the model's server has *dialect*."""

    def reply_to(call: Call[Any]) -> Any:
        is_question = type(call) is ModelMetadataRequest
        return ModelMetadata(name="m", dialect=dialect) if is_question else "x"

    service = ScriptedService(always=reply_to)
    frontend: Frontend[str, str] = Frontend(LenientCodec(), service)
    return str(await frontend.handle(wire)), [type(call) for call in service.calls]


async def test_a_refused_request_is_read_as_its_server_reads_it() -> None:
    """A front was as strict as Triton, whatever stood behind it."""
    found = await lenient_response("mlserver", "mlserver")
    assert ("reply x", [ModelMetadataRequest, InferRequest]) == found
    found = await lenient_response("kserve", "any")
    assert ("reply x", [ModelMetadataRequest, InferRequest]) == found


@pytest.mark.parametrize("dialect", ["mlserver", "strict", ""])
async def test_a_request_that_its_server_does_not_read_is_refused(dialect: str) -> None:
    """The error is that of the strict reading."""
    found = await lenient_response("kserve", dialect)
    assert ("invalid_argument: 'kserve' is no call", [ModelMetadataRequest]) == found


@pytest.mark.parametrize("wire", ["broken", "other"])
async def test_a_message_that_no_server_reads_requests_no_metadata(wire: str) -> None:
    """A broken message, and one that is no inference, cause no question."""
    assert (f"invalid_argument: {wire!r} is no call", []) == await lenient_response(wire, "any")
