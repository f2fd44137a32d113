"""Replies of forwarded calls as outputs: integers that no double has are compared exactly."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor

from gateway.ir.errors import MalformedMessage
from gateway.ir.tensors.tensor import as_items, as_numpy
from gateway.migration.compare.replies import Result, compare_results
from gateway.migration.compare.rules import OutputRules
from gateway.migration.compare.tensors import Outcome
from gateway.migration.replay.forwarded import forwarded_outputs
from gateway.registry import PROTOCOLS, protocol
from gateway.shadow.records.records import CallRow, RecordedCall, WireRow

HEAD = '{"carrier": "http", "method": "POST", "path": "/v1/models/m:classify"}'


def recorded(reply: bytes, head: str = HEAD, protocol: str = "tfs.http") -> RecordedCall:
    """Return a forwarded call with a reply."""
    call = CallRow(
        at_us=0,
        took_us=1,
        request_id="a",
        kind="Forwarded",
        client="",
        agent="",
        protocol=protocol,
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


def document(path: str, value: Any) -> Any:
    """Return JSON with a member at *path*, each one on the way in a list, beside another member."""
    for name in reversed(path.split(".")):
        value = {name: value, "kept": [1, "a"]}
        if name != path.split(".", maxsplit=1)[0]:
            value = [value]
    return value


def outcome(name: str, old: Any, new: Any) -> Outcome:
    """Return how two replies of a protocol compare."""
    results = []
    for each in (old, new):
        items = forwarded_outputs(recorded(json.dumps(each).encode(), protocol=f"{name}.http"))
        assert items is not None
        results.append(Result(items))
    before, after = results
    return compare_results(before, after, OutputRules()).outcome


@pytest.mark.parametrize("name", PROTOCOLS)
def test_members_that_differ_from_call_to_call_are_not_compared(name: str) -> None:
    """Those that the protocol lists, of any type and absent ones; no other of the same name."""
    for path in ("own", *protocol(name).varying):
        at = document(path, 1.5)
        expected = Outcome.MATCH if path != "own" else Outcome.MISMATCH
        assert outcome(name, at, document(path, 2.5)) is expected
        assert outcome(name, document(path, "a"), document(path, "b")) is expected
        inner = document(f"other.{path}", "a"), document(f"other.{path}", "b")
        assert outcome(name, *inner) is Outcome.MISMATCH
        assert outcome(name, at, {**document(path, 1.5), "kept": [1, "b"]}) is Outcome.MISMATCH


@pytest.mark.parametrize("name", PROTOCOLS)
def test_members_of_messages_that_differ_exist(name: str) -> None:
    """A protocol of described messages alone, or of both forms, has them in some reply."""
    spec = protocol(name)
    replies = [] if spec.grpc is None else [it for _, it in spec.grpc.message_types().values()]
    own = {path for path in spec.varying if any(has_field(it, path) for it in replies)}
    # The events of TensorFlow Serving's form over HTTP have no message.
    assert own == (spec.varying if replies and name != "tfs" else set())


def has_field(kind: Descriptor | None, path: str) -> bool:
    """Return whether a message has a field at *path*."""
    name, _, rest = path.partition(".")
    field = None if kind is None else kind.fields_by_name.get(name)
    return field is not None and (not rest or has_field(field.message_type, rest))
