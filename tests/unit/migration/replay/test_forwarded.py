"""Replies of forwarded calls as outputs: integers that no double has are compared exactly."""

from __future__ import annotations

import pytest

from gateway.ir.errors import MalformedMessage
from gateway.ir.tensor import as_items, as_numpy
from gateway.migration.captures.records import CallRow, RecordedCall, WireRow
from gateway.migration.replay.forwarded import forwarded_outputs

HEAD = '{"carrier": "http", "method": "POST", "path": "/v1/models/m:classify"}'


def recorded(reply: bytes, head: str = HEAD) -> RecordedCall:
    """Return a forwarded call with a reply."""
    call = CallRow(
        at_us=0,
        took_us=1,
        request_id="a",
        kind="Forwarded",
        client="",
        agent="",
        protocol="tfs.http",
        needs="[]",
        route="",
        target="",
        model="m",
        version="",
        sequence=None,
        parameters=None,
        details="{}",
        code="ok",
        error="",
    )
    rows = [WireRow("request", 0, head, b"{}"), WireRow("reply", 0, "{}", reply)]
    return RecordedCall(call, wire=rows)


@pytest.mark.parametrize("number", [str(2**53 + 1), "9" * 400])
def test_integers_without_a_double_stay_as_they_are(number: str) -> None:
    """They are part of the text, and all other numbers are numbers."""
    found = forwarded_outputs(recorded(b'{"b": [1, 2.5, true], "a": %s}' % number.encode()))
    assert found is not None
    ((text, numbers),) = found
    assert [f'{{"a": {number}, "b": [0, 0, true]}}'.encode()] == [
        bytes(it) for it in as_items(text)
    ]
    assert [1.0, 2.5] == as_numpy(numbers).tolist()


@pytest.mark.parametrize("head", ["[", "[]", "{}"])
def test_a_malformed_record_is_an_error(head: str) -> None:
    """A capture of a stranger raises nothing else."""
    with pytest.raises(MalformedMessage, match="is malformed"):
        forwarded_outputs(recorded(b"{}", head))
