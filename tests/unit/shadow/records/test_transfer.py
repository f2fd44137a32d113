"""Messages to the shadow process: complete, and without a copy of large elements."""

from __future__ import annotations

import numpy as np

from gateway.ir.calls import InferResponse
from gateway.ir.context import ModelRef
from gateway.ir.tensors.tensor import array_tensor
from gateway.shadow.records.records import record_of
from gateway.shadow.records.transfer import SampleMessage, decode_message, encode_message
from tests.unit.shadow.kit import FULL, recordable


def test_elements_are_views_of_the_message() -> None:
    """A decoded call has the same rows and checksum; large elements are the received bytes."""
    pixels = np.arange(20_000, dtype=np.uint8)
    reply = InferResponse(model=ModelRef("m"), outputs=(array_tensor("y", pixels),))
    record = record_of(recordable(items=[(1, reply)]), FULL, None)
    sent = encode_message(SampleMessage(record, {"arriving": 1}, {"queue": 2}))
    received = bytearray(b"".join(sent))
    message = decode_message(memoryview(received))
    assert (message.skipped, message.dropped) == ({"arriving": 1}, {"queue": 2})
    found = message.record
    assert found is not None
    assert (found.call, found.crc32()) == (record.call, record.crc32())
    assert [each.data for each in found.tensors] == [each.data for each in record.tensors]
    (large,) = [each.data for each in found.tensors if each.size == pixels.size]
    assert large is not None
    assert np.shares_memory(np.frombuffer(received, np.uint8), np.frombuffer(large, np.uint8))
