"""Calls that have ended are sent after their replies, and as they were then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway.api.tap import TappedCall
from gateway.ir.bodies.teed_body import TeeBudget, TeedBody
from gateway.ir.calls import InferResponse
from gateway.ir.context import ModelRef
from gateway.ir.tensors.data import SharedMemoryData, StreamedData, TensorData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Tensor, array_tensor, as_numpy
from gateway.migration.captures.sampling import CaptureOptions, CaptureSampler
from gateway.migration.mirror.outbox import Outbox
from gateway.shadow.packets import socket_pair
from gateway.shadow.records.privacy import Privacy
from gateway.shadow.records.records import record_of
from gateway.shadow.sender import FinishedCalls, RecordSender
from tests.fakes import FakeArriving, settle
from tests.unit.shadow.kit import recordable, request


async def test_calls_are_sent_in_the_next_loop_iteration() -> None:
    """The client's response does not wait for the record of its call."""
    sent: list[TappedCall] = []
    calls = FinishedCalls(sent.append)
    exchange = TappedCall(request(), 0.0)
    calls.put(exchange)
    assert not sent
    await settle()
    assert sent == [exchange]


async def test_the_record_copies_the_array_of_the_reply() -> None:
    """A model may write to the array afterwards; the elements are copied once."""
    array = np.zeros(4, np.float32)
    reply = InferResponse(model=ModelRef("m"), outputs=(array_tensor("y", array),))
    exchange = TappedCall(request(), 0.0)
    exchange.add(reply)
    calls: FinishedCalls[TappedCall] = FinishedCalls(lambda _exchange: None)
    calls.put(exchange)
    array[:] = 1
    found = calls.recordable(exchange)
    assert found is not None
    row = record_of(found[0], Privacy(payload="full"), None).tensors[-1]
    assert row.data == bytes(16)
    recorded_array = as_numpy(exchange.items[0][1].outputs[0])
    assert np.shares_memory(recorded_array, np.frombuffer(row.data, np.float32))


async def test_a_send_error_drops_one_call() -> None:
    """The error is logged and the body of the call released; the next call is sent."""
    sent: list[TappedCall] = []
    budget = TeeBudget(100)

    def send(exchange: TappedCall) -> None:
        if exchange.started == 0.0:
            raise RuntimeError("defect")
        sent.append(exchange)

    calls = FinishedCalls(send)
    calls.put(TappedCall(request(), 0.0, teed=TeedBody(FakeArriving(b"{}abcd", 2), budget)))
    calls.put(TappedCall(request(), 1.0))
    assert budget.used_bytes == 4
    calls.send_all()
    assert [each.started for each in sent] == [1.0]
    assert not budget.used_bytes


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (SharedMemoryData("region", 0, 16), "shared_memory"),
        (StreamedData(FakeArriving(bytes(16), 0), 0, 16), "arriving"),
    ],
)
@pytest.mark.parametrize("payload", ["none", "full"])
def test_calls_without_elements_in_memory_are_skipped(
    data: TensorData, reason: str, payload: Any
) -> None:
    """The reason is counted; without payload the call is recorded."""
    ours, theirs = socket_pair()
    with ours, theirs:
        sampler = CaptureSampler(CaptureOptions(directory=Path("unused")))
        sender = RecordSender(Outbox(ours, sampler), lambda: Privacy(payload=payload))
        inputs = array_tensor("x", np.zeros(4, np.float32)), Tensor("y", Datatype.FP32, (4,), data)
        is_sent = sender.send(recordable(request=request().changed(inputs=inputs)), None)
    assert is_sent == (payload == "none")
    assert sampler.counts.skipped == ({} if is_sent else {reason: 1})
