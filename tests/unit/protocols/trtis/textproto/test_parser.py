"""Tests of corner cases of the text format, compared with protobuf's own parser."""

from __future__ import annotations

import math

import pytest
from google.protobuf import text_format

from gateway.ir.errors import MalformedMessage
from gateway.protocols.trtis.textproto.parser import parse_text
from gateway.schema import tensorrt_v1_pb2 as pb

VALUE = "output { batch_classes { cls { value: %s } } }"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# nothing",
        "batch_size: 1 # one\n id: 2",
        "input { dims: [] name: 'a' }",
        "input { dims: [1, 2, 3] }",
        "input { dims: [0x10, 010] dims: -1 }",
        "input: [{ name: 'a' }, < name: 'b' >]",
        "input { name: 'a' \"b\" 'c' }; id: 7",
        "unknown: 1 batch_size: 2",
        "unknown { a: [1, 'x', word] b < c: -inf > }",
        "unknown: [{ a: 1 }, { b: 2 }] batch_size: 2",
    ],
)
def test_reads_as_the_library(text: str) -> None:
    """Both parsers return the same message."""
    expected = text_format.Parse(text, pb.InferRequestHeader(), allow_unknown_field=True)
    assert expected == parse_text(text, pb.InferRequestHeader, allow_unknown=True)


@pytest.mark.parametrize(
    "text",
    [
        "new { [some.extension]: 1 } batch_size: 3",
        "new { [type.googleapis.com/some.Type] { a: 1 } } batch_size: 3",
        "new < [type.googleapis.com/some.Type] < a { } >; > batch_size: 3",
    ],
)
def test_extensions_in_unknown_fields_are_skipped(text: str) -> None:
    """Within an unknown field, names of other files are accepted."""
    found = parse_text(text, pb.InferRequestHeader, allow_unknown=True)
    assert pb.InferRequestHeader(batch_size=3) == found
    with pytest.raises(MalformedMessage, match="InferRequestHeader has no field 'new'"):
        parse_text(text, pb.InferRequestHeader)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("20", 20.0),
        ("20.0", 20.0),
        ("2.5f", 2.5),
        ("1e3F", 1000.0),
        ("inf", math.inf),
        ("-infinity", -math.inf),
        ("INF", math.inf),
        ("-0", 0.0),
    ],
)
def test_floats_have_many_forms(text: str, value: float) -> None:
    """Integers, suffixes and names of infinity are numbers (trap T20)."""
    found = parse_text(VALUE % text, pb.InferResponseHeader)
    assert value == found.output[0].batch_classes[0].cls[0].value


def test_nan_is_a_number() -> None:
    """The value is read as a float."""
    found = parse_text(VALUE % "nan", pb.InferResponseHeader)
    assert math.isnan(found.output[0].batch_classes[0].cls[0].value)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[", "found '[' as token 1: expected a field's name"),
        ("[a.b]: 1", "found '[' as token 1: expected a field's name"),
        ("new { [a }", "found '}' as token 5: expected ']'"),
        ("new { [1]: 2 }", "found '1' as token 4: expected an identifier"),
        ("new { [a.]: 2 }", "found ']' as token 6: expected an identifier"),
        ("unknown:", "found the end as token 3: expected a value"),
        ("unknown: {", "found the end as token 4: expected a field's name"),
        ("unknown: [1", "found the end as token 5: expected ','"),
        ("unknown: }", "found '}' as token 3: expected a value"),
        ("batch_size: 1 batch_size: 2", "field 'batch_size' occurs twice"),
        ("batch_size 1", "found '1' as token 2: expected ':'"),
        (VALUE % "0x1p3", "'0x1p3' is not a number"),
        (VALUE % "1e", "'1e' is not a number"),
        (VALUE % "'1'", "\"'1'\" is not a number"),
    ],
)
def test_rejects_invalid_text(text: str, error: str) -> None:
    """The error names the invalid token and its position, or the invalid field or value."""
    kind = pb.InferResponseHeader if "output" in text else pb.InferRequestHeader
    with pytest.raises(MalformedMessage) as caught:
        parse_text(text, kind, allow_unknown=True)
    assert f"text is not {kind.DESCRIPTOR.name} in text format: {error}" == caught.value.message
    with pytest.raises(text_format.ParseError):
        text_format.Parse(text, kind(), allow_unknown_field=True)
