"""The checksum of a recorded call is the same in every version of the gateway."""

from __future__ import annotations

import zlib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.shadow.records.records import CallRow, RecordedCall, TensorRow, WireRow

TEXTS = st.text(st.characters(exclude_categories=[]), max_size=20)
BYTES = st.none() | st.binary(max_size=20)


def defined(record: RecordedCall) -> int:
    """Return the checksum as version 1 of the format defines it: value by value."""
    found = 0
    for row in (record.call, *record.tensors, *record.items, *record.wire):
        for name in row.__struct_fields__:
            found = _of_value(getattr(row, name), found)
    return found


def _of_value(value: Any, before: int) -> int:
    kind, data = b"b", value
    if not isinstance(value, bytes):
        kind, data = b"v", repr(value).encode("utf-8", "surrogatepass")
    return zlib.crc32(data, zlib.crc32(b"%b%d;" % (kind, len(data)), before))


@given(st.lists(st.tuples(TEXTS, BYTES, BYTES), max_size=4), TEXTS, st.integers())
def test_the_checksum_follows_the_format(
    tensors: list[tuple[str, bytes | None, bytes | None]], text: str, number: int
) -> None:
    """Texts of any characters, elements and absent values are included as the format defines."""
    rows = [
        TensorRow("input", 0, place, name, "FP32", None, "raw", None, 4, digest, data)
        for place, (name, digest, data) in enumerate(tensors)
    ]
    call = CallRow(at_us=number, took_us=0, model=text, error=text)
    record = RecordedCall(
        call, rows, (), [WireRow("request", 0, text, text[:3].encode("utf-16", "surrogatepass"))]
    )
    assert record.crc32() == defined(record)
