"""Upstreams and frontends with requests whose bodies are still arriving."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gateway.api.protocol import CutThroughCodec
from gateway.frontend.frontend import Frontend
from gateway.ir.bodies.streamed_inputs import streaming_body_of
from gateway.ir.calls import Call, InferRequest
from gateway.ir.context import ModelRef
from gateway.ir.errors import MalformedMessage, Overloaded, Unavailable
from gateway.ir.tensors.data import StreamedData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import as_raw, streamed_tensor
from gateway.upstream import Upstream
from tests.fakes import FakeArriving, FakeCodec, ScriptedService

MODEL = ModelRef("m")


class Whole(FakeCodec):
    """A codec that encodes an inference as the bytes of its input."""

    def encode_call(self, call: Call[Any], /) -> str:
        assert isinstance(call, InferRequest)
        return bytes(as_raw(call.inputs[0])).decode()


class CutThrough(Whole, CutThroughCodec[str, str]):
    """A codec that can also encode an inference while its body arrives."""

    def __init__(self, *, passes: bool = True) -> None:
        self.passes = passes

    def encode_cut_through(self, call: Call[Any], /) -> str | None:
        return "arriving" if self.passes else None


class EchoClient:
    """A client that replies with its request."""

    def __init__(self, *, sends_rest: bool) -> None:
        self.sends_rest = sends_rest

    async def send(
        self, wire: str, /, *, deadline: float | None, decode: Callable[[str], Any]
    ) -> Any:
        return decode(wire)


def streaming_call(source: FakeArriving) -> InferRequest:
    data = StreamedData(source, source.start, source.end - source.start)
    tensor = streamed_tensor("a", Datatype.UINT8, (data.size_bytes,), data)
    return InferRequest(model=MODEL, inputs=(tensor,))


@pytest.mark.parametrize(
    ("codec", "sends_rest", "expected"),
    [
        (CutThrough(), True, "arriving"),
        (CutThrough(), False, "yz"),
        (CutThrough(passes=False), True, "yz"),
        (Whole(), True, "yz"),
    ],
)
async def test_cut_through_needs_support_of_codec_and_client(
    codec: Any, sends_rest: bool, expected: str
) -> None:
    """Otherwise the whole body is awaited and encoded."""
    client: Any = EchoClient(sends_rest=sends_rest)
    upstream: Upstream[str, str] = Upstream("u", codec, client)
    assert expected == await upstream(streaming_call(FakeArriving(b"xyz", 1)))


async def test_a_partly_sent_body_is_not_sent_again() -> None:
    """A call whose body has been started raises Unavailable."""
    source = FakeArriving(b"xyz", 1)
    source.is_started = True
    codec, client = CutThrough(), EchoClient(sends_rest=True)
    upstream: Upstream[Any, Any] = Upstream("u", codec, client)  # type: ignore[arg-type]
    with pytest.raises(Unavailable):
        await upstream(streaming_call(source))


class EarlyCodec(FakeCodec, CutThroughCodec[str, str]):
    """The text "early" is decoded from its head, "whole" needs the body; others are malformed."""

    def early_bytes(self, wire: str, /) -> int | None:
        return 5 if wire in ("early", "whole") else None

    def decode_early(self, wire: str, /) -> Call[Any] | None:
        if wire == "bug":
            raise ZeroDivisionError
        if wire not in ("early", "whole"):
            raise MalformedMessage(f"{wire!r} is no call")
        return streaming_call(FakeArriving(b"xyz", 1)) if wire == "early" else None

    def decode_call(self, wire: str, _request_id: str = "", /) -> Call[Any]:
        return InferRequest(model=ModelRef(wire))

    def encode_cut_through(self, call: Call[Any], /) -> str | None:
        raise AssertionError(call)


async def call_early(wire: str, service: Any, refused: list[str]) -> Any:
    """Let a frontend handle a request before its body is complete."""

    async def whole() -> str:
        if refused:
            raise Overloaded(refused[0])
        return "all of it"

    codec: Any = EarlyCodec()
    frontend: Frontend[str, str] = Frontend(codec, service)
    return await frontend.handle_early(wire, whole)


async def test_a_frontend_calls_the_service_early() -> None:
    """The call still has a streaming body, and a request id."""
    service = ScriptedService(True)
    assert "reply True" == await call_early("early", service, [])
    (call,) = service.calls
    assert streaming_body_of(call) is not None
    assert call.context.request_id


async def test_a_frontend_waits_for_the_body_if_the_codec_needs_it() -> None:
    """The whole request is decoded."""
    service = ScriptedService(True)
    assert "reply True" == await call_early("whole", service, [])
    assert ModelRef("all of it") == service.calls[0].model


@pytest.mark.parametrize(
    ("wire", "refused", "message"),
    [
        ("what", [], "invalid_argument: 'what' is no call"),
        ("bug", [], "internal: internal error of the gateway"),
        ("whole", ["no room"], "overloaded: no room"),
    ],
)
async def test_errors_of_early_requests_are_encoded(
    wire: str, refused: list[str], message: str
) -> None:
    """A malformed head, a bug and a lack of memory are responses of the protocol."""
    assert message == await call_early(wire, ScriptedService(), refused)


def test_early_bytes_are_those_of_the_codec() -> None:
    """A codec that needs whole requests has none."""
    codec: Any = EarlyCodec()
    plain: Any = Whole()
    service = ScriptedService()
    assert 5 == Frontend(codec, service).early_bytes("early")
    assert Frontend(plain, service).early_bytes("early") is None
