"""The parts of several extensions in one serving process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from gateway.api.extension import ServingPart
from gateway.api.tap import Tap, TappedCall
from gateway.app.build.parts import ServingParts
from gateway.ir.bodies.streamed_inputs import streaming_body_of
from gateway.ir.bodies.teed_body import TeeBudget, tee_body
from gateway.ir.calls import Call, InferRequest, InferResponse, ServerLiveRequest
from gateway.ir.context import ModelRef
from gateway.ir.errors import ErrorCode, GatewayError, NotFound
from gateway.ir.tensors.data import StreamedData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import streamed_tensor
from tests.fakes import FakeArriving


class KeepingTap:
    """A tap that chooses calls of a model, and keeps their bodies."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.ended: list[TappedCall] = []
        self.kept: list[bytes] = []
        self.budget = TeeBudget(100)

    def begin(self, call: Call[Any], /) -> TappedCall | None:
        if not isinstance(call, InferRequest) or call.model != ModelRef(self.model):
            return None
        call, teed = tee_body(call, self.budget)
        return TappedCall(call, 0.0, teed=teed)

    def end(self, exchange: TappedCall, /) -> None:
        self.ended.append(exchange)
        if exchange.teed is not None:
            self.kept.append(bytes(exchange.teed.kept() or b""))
            exchange.teed.release()

    def rejected(self, codec: str, wire: Any, error: GatewayError, response: Any, /) -> None:
        raise AssertionError("every message here can be decoded")


class BrokenTap(KeepingTap):
    """A tap of a package that raises."""

    def end(self, exchange: TappedCall, /) -> None:
        raise RuntimeError("a defect of the tap")


class TappingPart(ServingPart):
    def __init__(self, tap: Tap) -> None:
        self._tap = tap

    @property
    def taps(self) -> Sequence[Tap]:
        return (self._tap,)


def tap_of(*taps: Tap) -> Tap:
    """Return the taps of several extensions as one."""
    parts = {f"extension {number}": TappingPart(tap) for number, tap in enumerate(taps)}
    found = ServingParts(parts).tap
    assert found is not None
    return found


class Sink:
    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def write(self, piece: memoryview, /) -> None:
        self.pieces.append(bytes(piece))


def call(source: FakeArriving) -> InferRequest:
    tensor = streamed_tensor("a", Datatype.UINT8, (8,), StreamedData(source, 2, 8))
    return InferRequest(model=ModelRef("m"), inputs=(tensor,))


def test_each_tap_that_chooses_a_call_receives_it() -> None:
    """All have the replies, the error and the body; the client's server gets the body once."""
    first, second, other = KeepingTap("m"), KeepingTap("m"), KeepingTap("other")
    tap, sink = tap_of(first, other, second), Sink()
    exchange = tap.begin(call(FakeArriving(b"{}abcdefgh", 2)))
    assert exchange is not None
    assert isinstance(exchange.call, InferRequest)
    body = streaming_body_of(exchange.call)
    assert body is not None
    body.pipe_to(sink)
    exchange.add(InferResponse(model=ModelRef("m"), outputs=(), id="1"))
    exchange.fail(NotFound("gone"))
    exchange.took_s = 0.5
    tap.end(exchange)
    assert [b"abcdefgh"] == sink.pieces == first.kept == second.kept
    for each in (*first.ended, *second.ended):
        assert ["1"] == [item.id for _, item in each.items]
        assert ((ErrorCode.NOT_FOUND, "gone"), 0.5) == (each.error, each.took_s)
    assert (1, 1, 0) == tuple(len(each.ended) for each in (first, second, other))
    assert first.ended[0].items is not second.ended[0].items
    assert (0, 0) == (first.budget.used_bytes, second.budget.used_bytes)


def test_a_call_that_no_tap_chooses_has_no_exchange() -> None:
    """It is served as without taps."""
    tap = tap_of(KeepingTap("other"), KeepingTap("another"))
    assert tap.begin(call(FakeArriving(b"{}abcdefgh", 2))) is None
    assert tap.begin(ServerLiveRequest()) is None


@pytest.mark.parametrize("broken_first", [False, True])
def test_a_failing_tap_costs_no_other_one_the_call(broken_first: bool) -> None:
    """The others receive it, and release its body."""
    good, broken = KeepingTap("m"), BrokenTap("m")
    tap = tap_of(broken, good) if broken_first else tap_of(good, broken)
    exchange = tap.begin(call(FakeArriving(b"{}abcdefgh", 2)))
    assert exchange is not None
    with pytest.raises(RuntimeError, match="a defect"):
        tap.end(exchange)
    assert (1, 0) == (len(good.ended), good.budget.used_bytes)
