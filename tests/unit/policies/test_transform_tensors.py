"""TransformTensors: requests and replies pass a transform, and its faults stay its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from gateway.api.layer import Entries
from gateway.ir.calls import (
    InferRequest,
    InferResponse,
    ModelMetadataRequest,
    ModelReadyRequest,
    StreamInferRequest,
)
from gateway.ir.context import ModelRef, Need
from gateway.ir.errors import InternalError, InvalidRequest
from gateway.ir.tensors.tensor import array_tensor, as_numpy
from gateway.policies.transform_tensors import TransformTensors
from tests.fakes import FakeStream, ScriptedService

M = ModelRef("m")


class Shift:
    """Adds one to the inputs and ten to the outputs."""

    needs = frozenset({Need.DATATYPES})

    def before(self, request: InferRequest, /) -> InferRequest:
        return request.changed(inputs=shifted(request.inputs, 1))

    def after(self, request: InferRequest, reply: InferResponse, /) -> InferResponse:
        assert 2 == as_numpy(request.inputs[0])[0]
        return reply.changed(outputs=shifted(reply.outputs, 10))


class Raising(Shift):
    def __init__(self, error: Exception | None, *, late: bool = False) -> None:
        self._error = error
        self._late = late

    def before(self, request: InferRequest, /) -> InferRequest:
        found: InferRequest = super().before(request) if self._late else self._fail()
        return found

    def after(self, request: InferRequest, reply: InferResponse, /) -> InferResponse:
        found: InferResponse = self._fail()
        return found

    def _fail(self) -> Any:
        if self._error is not None:
            raise self._error
        return "no message"


def shifted(tensors: Any, by: int) -> Any:
    return tuple(array_tensor(each.name, as_numpy(each) + by) for each in tensors)


def request() -> InferRequest:
    return InferRequest(model=M, inputs=(array_tensor("x", np.array([1])),))


def reply(value: int, **fields: Any) -> InferResponse:
    return InferResponse(model=M, outputs=(array_tensor("y", np.array([value])),), **fields)


def layer(service: ScriptedService, transform: Any) -> TransformTensors:
    return TransformTensors(Entries(service, service, service), transform, "t")


def value(found: InferResponse) -> int:
    return int(as_numpy(found.outputs[0])[0])


async def test_request_and_reply_are_transformed() -> None:
    """The target gets what `before` returns, and is asked for what the transform needs."""
    service = ScriptedService(reply(5))
    assert 15 == value(await layer(service, Shift())(request()))
    call: Any = service.calls[0]
    assert 2 == as_numpy(call.inputs[0])[0]
    assert {Need.DATATYPES} == call.context.needs


async def test_each_reply_of_a_stream_is_transformed() -> None:
    """An item that is an error has no tensors, and passes as it is."""
    failed = reply(0, error=InvalidRequest("x"))
    service = ScriptedService(FakeStream([reply(5), failed, reply(6)]))
    stream = await layer(service, Shift())(StreamInferRequest(model=M, request=request()))
    assert [15, 0, 16] == [value(item) async for item in stream]


@pytest.mark.parametrize("call", [ModelReadyRequest(model=M), ModelMetadataRequest(model=M)])
async def test_questions_pass(call: Any) -> None:
    """A transform sees inferences only."""
    service = ScriptedService("answer")
    assert "answer" == await layer(service, Raising(ZeroDivisionError()))(call)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("error", [ZeroDivisionError("of the package"), None])
async def test_a_fault_costs_its_own_call(error: Exception | None, late: bool) -> None:
    """The client learns nothing of it, and the log names the transform."""
    with capture_logs() as lines, pytest.raises(InternalError) as raised:
        await layer(ScriptedService(reply(5)), Raising(error, late=late))(request())
    assert "internal error of the gateway" == raised.value.message
    assert ["transform 't'"] == [line["part"] for line in lines]


async def test_a_transform_may_reject_a_request() -> None:
    """A `GatewayError` reaches the client as it is."""
    with pytest.raises(InvalidRequest, match="no picture"):
        await layer(ScriptedService(), Raising(InvalidRequest("no picture")))(request())
