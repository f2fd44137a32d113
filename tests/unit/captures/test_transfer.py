"""Messages to the shadow process: whole, and without a copy of elements on either side."""

from __future__ import annotations

import numpy as np

from gateway.captures.records import record_of
from gateway.captures.transfer import SampleMessage, decode_message, encode_message
from tests.unit.captures.kit import FULL, recordable


def test_elements_are_views_of_the_message() -> None:
    """A decoded call has the same rows and checksum, and refers to the received bytes."""
    record = record_of(recordable(), FULL, None)
    sent = encode_message(SampleMessage(record, {"arriving": 1}, {"queue": 2}))
    received = bytearray(b"".join(sent))
    message = decode_message(memoryview(received))
    assert (message.skipped, message.dropped) == ({"arriving": 1}, {"queue": 2})
    found = message.record
    assert found is not None
    assert (found.call, found.crc32()) == (record.call, record.crc32())
    data = [each.data for each in found.tensors if each.data]
    assert data
    whole = np.frombuffer(received, np.uint8)
    assert all(np.shares_memory(whole, np.frombuffer(each, np.uint8)) for each in data)
