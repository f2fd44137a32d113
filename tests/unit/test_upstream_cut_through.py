"""Upstreams and frontends of requests that are still arriving."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gateway.frontend import Frontend
from gateway.ir.calls import Call, InferRequest
from gateway.ir.context import ModelRef
from gateway.ir.data import StreamedData
from gateway.ir.datatypes import Datatype
from gateway.ir.errors import MalformedMessage, Overloaded, Unavailable
from gateway.ir.streaming_body import streaming_body_of
from gateway.ir.tensor import as_raw, streamed_tensor
from gateway.upstream import Upstream
from gateway.wire.codec import CutThroughCodec
from tests.fakes import FakeArriving, FakeCodec, ScriptedService

MODEL = ModelRef("m")


class Whole(FakeCodec):
    """A codec that writes an inference as the bytes of its input."""

    def encode_call(self, call: Call[Any], /) -> str:
        assert isinstance(call, InferRequest)
        return bytes(as_raw(call.inputs[0])).decode()


class Passing(Whole, CutThroughCodec[str, str]):
    """One that can also write it while it comes."""

    def __init__(self, *, passes: bool = True) -> None:
        self.passes = passes

    def encode_cut_through(self, call: Call[Any], /) -> str | None:
        return "arriving" if self.passes else None


class Client:
    """A client that answers with what it is sent."""

    def __init__(self, *, sends_rest: bool) -> None:
        self.sends_rest = sends_rest

    async def send(
        self, wire: str, /, *, deadline: float | None, decode: Callable[[str], Any]
    ) -> Any:
        return decode(wire)


def waiting(source: FakeArriving) -> InferRequest:
    data = StreamedData(source, source.start, source.end - source.start)
    tensor = streamed_tensor("a", Datatype.UINT8, (data.size_bytes,), data)
    return InferRequest(model=MODEL, inputs=(tensor,))


@pytest.mark.parametrize(
    ("codec", "sends_rest", "expected"),
    [
        (Passing(), True, "arriving"),
        (Passing(), False, "yz"),
        (Passing(passes=False), True, "yz"),
        (Whole(), True, "yz"),
    ],
)
async def test_it_is_passed_on_only_where_codec_and_client_can(
    codec: Any, sends_rest: bool, expected: str
) -> None:
    """Otherwise it is waited for and written as ever."""
    client: Any = Client(sends_rest=sends_rest)
    upstream: Upstream[str, str] = Upstream("u", codec, client)
    assert expected == await upstream(waiting(FakeArriving(b"xyz", 1)))


async def test_nothing_is_written_twice() -> None:
    """A call of which a part has gone is an error, whatever asks for it again."""
    source = FakeArriving(b"xyz", 1)
    source.is_started = True
    codec, client = Passing(), Client(sends_rest=True)
    upstream: Upstream[Any, Any] = Upstream("u", codec, client)  # type: ignore[arg-type]
    with pytest.raises(Unavailable):
        await upstream(waiting(source))


class Heads(FakeCodec, CutThroughCodec[str, str]):
    """A codec of texts: "early" begins with its head, "whole" does not; else it is malformed."""

    def early_bytes(self, wire: str, /) -> int | None:
        return 5 if wire in ("early", "whole") else None

    def decode_early(self, wire: str, /) -> Call[Any] | None:
        if wire == "bug":
            raise ZeroDivisionError
        if wire not in ("early", "whole"):
            raise MalformedMessage(f"{wire!r} is no call")
        return waiting(FakeArriving(b"xyz", 1)) if wire == "early" else None

    def decode_call(self, wire: str, _request_id: str = "", /) -> Call[Any]:
        return InferRequest(model=ModelRef(wire))

    def encode_cut_through(self, call: Call[Any], /) -> str | None:
        raise AssertionError(call)


async def ask_early(wire: str, service: Any, refused: list[str]) -> Any:
    """Ask a frontend early."""

    async def whole() -> str:
        if refused:
            raise Overloaded(refused[0])
        return "all of it"

    codec: Any = Heads()
    frontend: Frontend[str, str] = Frontend(codec, service)
    return await frontend.handle_early(wire, whole)


async def test_a_frontend_begins_with_the_head() -> None:
    """Its service is called while bytes are still to come; the call has an id."""
    service = ScriptedService(True)
    assert "reply True" == await ask_early("early", service, [])
    (call,) = service.calls
    assert streaming_body_of(call) is not None
    assert call.context.request_id


async def test_a_frontend_waits_where_the_codec_needs_all() -> None:
    """The whole request is read when it has come."""
    service = ScriptedService(True)
    assert "reply True" == await ask_early("whole", service, [])
    assert ModelRef("all of it") == service.calls[0].model


@pytest.mark.parametrize(
    ("wire", "refused", "message"),
    [
        ("what", [], "invalid_argument: 'what' is no call"),
        ("bug", [], "internal: internal error of the gateway"),
        ("whole", ["no room"], "overloaded: no room"),
    ],
)
async def test_what_is_wrong_is_said_in_the_protocols_form(
    wire: str, refused: list[str], message: str
) -> None:
    """A wrong head, a bug and a body that there is no room for are answers."""
    assert message == await ask_early(wire, ScriptedService(), refused)


def test_a_frontend_says_how_much_is_enough() -> None:
    """As its codec does; one whose codec reads whole requests only needs all."""
    codec: Any = Heads()
    plain: Any = Whole()
    service = ScriptedService()
    assert 5 == Frontend(codec, service).early_bytes("early")
    assert Frontend(plain, service).early_bytes("early") is None
