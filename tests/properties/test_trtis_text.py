"""The hand-written reader of protobuf's text format against the library, on drawn texts."""

from __future__ import annotations

import re
import warnings
from typing import Any, TypeVar

import numpy as np
import pytest
from google.protobuf import text_format
from google.protobuf.message import Message
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from gateway.ir.errors import MalformedMessage
from gateway.protocols.trtis.textproto.parser import MAX_DEPTH, parse_text
from gateway.protocols.trtis.textproto.writer import (
    float_text,
    quoted,
    request_line,
    response_line,
    status_line,
)
from gateway.schema import tensorrt_v1_pb2 as pb

M = TypeVar("M", bound=Message)

KINDS: list[type[Message]] = [pb.InferRequestHeader, pb.InferResponseHeader, pb.RequestStatus]

# Python's library keeps an escape it does not know as it stands, and takes some that the language
# does not have; the C++ library of real servers refuses those, and so does the reader.
_ESCAPES = re.compile(r"\\(?:[abfnrtv\\'\"]|[0-7]{1,3}|x[0-9a-fA-F]{1,2})")


def known_escapes(text: str) -> bool:
    """Return whether every backslash begins an escape that both define equally."""
    return "\\" not in _ESCAPES.sub("", text)


def by_library(text: str, kind: type[M], *, allow_unknown: bool = True) -> M | None:
    """Return the message that the library reads; None if it rejects the text."""
    message = kind()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            text_format.Parse(text, message, allow_unknown_field=allow_unknown)
    except (text_format.ParseError, ValueError, RecursionError):
        return None
    return message


def by_hand(text: str, kind: type[M], *, allow_unknown: bool = True) -> M | None:
    try:
        return parse_text(text, kind, allow_unknown=allow_unknown)
    except MalformedMessage:
        return None


def depth(text: str) -> int:
    """Return how many brackets are open at most, wherever they stand."""
    deepest = found = 0
    for character in text:
        found += (character in "{<") - (character in "}>")
        deepest = max(deepest, found)
    return deepest


# Texts by the grammar, most of them legal.

BLANK = st.sampled_from([" ", " ", " ", "  ", "\t", ""])
SEPARATOR = st.sampled_from(["", "", "", ",", ";", " , ", " ;"])
INTEGERS = st.one_of(
    *[st.integers(1, 300).map(str)] * 8,
    st.integers(-(2**65), 2**65).map(str),
    st.integers(0, 2**64).map(hex),
    st.integers(0, 2**20).map(lambda value: f"0{value:o}"),
    st.sampled_from(["-0", "-1", "0x", "08", "1_0", "+1", "1.0", "1e3", "-0x10", "0b11", "- 1"]),
)
FLOATS = st.one_of(
    st.floats(width=32).map(repr),
    st.floats().map(str),
    st.sampled_from(["inf", "-inf", "Infinity", "nan", "NaNf", "1f", "1.5F", "20", ".5", "-.5e3"]),
    INTEGERS,
)
PIECES = st.one_of(
    st.text(st.characters(exclude_characters="\\\"'\n\r", exclude_categories=["Cs"]), max_size=5),
    st.sampled_from(["\\n", "\\\\", "\\'", '\\"', "\\101", "\\x41", "\\xe9", "\\303\\251", "\\7"]),
)
UNKNOWN = ["extra", "[a.b]", "12", "x-y", "é", "[type.googleapis.com/a.b]"]


@st.composite
def strings(draw: DrawFn) -> str:
    quote = draw(st.sampled_from(['"', "'"]))
    inner = "".join(draw(st.lists(PIECES, max_size=3))).replace("\n", "")
    text = f"{quote}{inner}{quote}"
    if draw(st.integers(0, 9)) == 0:
        text += draw(BLANK) + draw(strings())
    return text


@st.composite
def scalars(draw: DrawFn, field: Any) -> str:
    if field.cpp_type == field.CPPTYPE_STRING:
        return str(draw(strings()))
    if field.cpp_type == field.CPPTYPE_FLOAT:
        return str(draw(FLOATS))
    if field.cpp_type == field.CPPTYPE_ENUM:
        names = [value.name for value in field.enum_type.values]
        return str(draw(st.sampled_from([*names, "NOT_THERE"]) | INTEGERS))
    return str(draw(INTEGERS))


@st.composite
def unknown_values(draw: DrawFn, deep: int) -> str:
    kind = draw(st.integers(0, 4 if deep < 4 else 2))
    if kind == 0:
        return ": " + draw(strings())
    if kind == 1:
        return ":" + draw(FLOATS)
    if kind == 2:
        return ": " + draw(st.sampled_from(["word", "[1, 2]", "[]", '["a" "b", x]', "[<a: 1>]"]))
    opening, closing = draw(st.sampled_from([("{", "}"), ("<", ">"), ("{", "}"), ("{", ">")]))
    names = st.sampled_from(["a", "b1", "[x.y]", "3"])
    inner = [draw(names) + draw(unknown_values(deep + 1)) for _ in range(draw(st.integers(0, 2)))]
    return draw(st.sampled_from(["", ":", " "])) + opening + " ".join(inner) + closing


@st.composite
def fields(draw: DrawFn, descriptor: Any) -> str:
    all_fields = list(descriptor.fields)
    if draw(st.integers(0, 11)) == 0:
        return draw(st.sampled_from(UNKNOWN)) + draw(unknown_values(0))
    field = draw(st.sampled_from(all_fields))
    if field.message_type is not None:
        value = st.builds(
            lambda pair, inner: pair[0] + inner + pair[1],
            st.sampled_from([*["{}"] * 9, *["<>"] * 9, "{>"]),
            bodies(field.message_type),
        )
        colon = draw(st.sampled_from(["", " ", ":", ": "]))
    else:
        value = scalars(field)
        colon = draw(st.sampled_from([*[":", ": ", " : "] * 6, ""]))
    if field.is_repeated and draw(st.integers(0, 3)) == 0:
        inner = draw(st.sampled_from([", ", ",", " , "])).join(draw(st.lists(value, max_size=3)))
        return f"{field.name}{colon}[{inner}]"
    return f"{field.name}{colon}{draw(value)}"


@st.composite
def bodies(draw: DrawFn, descriptor: Any) -> str:
    parts = draw(st.lists(fields(descriptor), max_size=4))
    return "".join(draw(BLANK) + part + draw(SEPARATOR) + " " for part in parts)


@st.composite
def texts(draw: DrawFn) -> tuple[type[Message], str]:
    kind = draw(st.sampled_from(KINDS))
    text = draw(bodies(kind.DESCRIPTOR))
    if draw(st.integers(0, 9)) == 0:
        text += "# the rest { is said aside"
    return kind, text


@st.composite
def mutated(draw: DrawFn) -> tuple[type[Message], str]:
    kind, text = draw(texts())
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(text)))
        end = draw(st.integers(at, min(len(text), at + 3)))
        put = draw(st.sampled_from([*"{}<>[]:,;#'\"-+.0x_ \\", "é", "", "a", "input", "\x00"]))
        text = text[:at] + put + text[end:]
    return kind, text


def agree(kind: type[Message], text: str) -> None:
    if not known_escapes(text) or "\n" in text or depth(text) >= MAX_DEPTH:
        return
    expected = by_library(text, kind)
    found = by_hand(text, kind)
    assert str(expected) == str(found)  # as text, since NaN is not equal to itself
    if expected is not None and found is not None:
        assert expected.SerializeToString(deterministic=True) == found.SerializeToString(
            deterministic=True
        )
    strict = by_library(text, kind, allow_unknown=False)
    assert str(strict) == str(by_hand(text, kind, allow_unknown=False))


@given(texts())
@example((pb.InferRequestHeader, "batch_size: 1 batch_size: 1"))
@example((pb.InferRequestHeader, "batch_size: 0 batch_size: 1"))
@example((pb.InferRequestHeader, "input < name: 'a' 'b' dims: [1, 2]; > output: {name: \"\\101\"}"))
@example(
    (pb.InferResponseHeader, "output { batch_classes { cls { value: 20 } cls {value: nan} } }")
)
@example((pb.InferRequestHeader, "output { cls {} cls {} }"))
@example((pb.InferRequestHeader, 'input { name: "\\377" }'))
@example((pb.RequestStatus, "code: 7 msg: 'é' new { a: [1] b <> }"))
@example((pb.RequestStatus, ""))
@example((pb.RequestStatus, "code: 2147483648"))
def test_valid_text_is_read_as_by_protobuf(drawn: tuple[type[Message], str]) -> None:
    """Both read the same message, or both reject the text."""
    agree(*drawn)


@given(mutated())
@example((pb.InferRequestHeader, '"'))
@example((pb.InferRequestHeader, "batch_size"))
@example((pb.InferRequestHeader, "input {"))
@example((pb.InferRequestHeader, "[a.b]: 1"))
@example((pb.InferRequestHeader, "x: \"a' "))
@example((pb.InferRequestHeader, "x: -"))
@example((pb.InferRequestHeader, "x: 0888"))
@example((pb.InferRequestHeader, "x {[a.b/c.d] {}}"))
def test_damaged_text_is_read_as_by_protobuf(drawn: tuple[type[Message], str]) -> None:
    """Both read the same message, or both reject the text."""
    agree(*drawn)


@given(st.sampled_from(KINDS), st.text(max_size=40))
def test_any_text_is_read_or_malformed(kind: type[Message], text: str) -> None:
    """The reader returns a message or raises MalformedMessage."""
    found = by_hand(text, kind)
    assert found is None or isinstance(found, kind)


@pytest.mark.parametrize("opening", ["x {", "x <", "x: [{"])
def test_nesting_is_limited(opening: str) -> None:
    """Nesting up to the limit is read; any deeper text is rejected."""
    closing = {"x {": "}", "x <": ">", "x: [{": "}]"}[opening]
    inner = MAX_DEPTH - 1
    assert pb.RequestStatus() == by_hand(opening * inner + closing * inner, pb.RequestStatus)
    for depth_ in (MAX_DEPTH, 100_000):
        with pytest.raises(MalformedMessage, match=f"more than {MAX_DEPTH} deep"):
            parse_text(opening * depth_ + closing * depth_, pb.RequestStatus, allow_unknown=True)


@pytest.mark.parametrize("text", [r"\q", r"\x", r"\777", r"\ud800", r"\U00110000", r"\N{DOT}"])
def test_unknown_escapes_are_rejected(text: str) -> None:
    """An escape that the text format does not define is an error, as in the C++ library."""
    with pytest.raises(MalformedMessage, match="text is not RequestStatus"):
        parse_text(f'msg: "{text}"', pb.RequestStatus)


@pytest.mark.parametrize(
    ("text", "expected"),
    [(r"\?", "?"), (r"\u00e9", "é"), (r"\U0001F600", "😀"), (r"\u005cn", r"\n"), (r"\x414", "A4")],
)
def test_standard_escapes_are_read(text: str, expected: str) -> None:
    """Escapes that Python's library reads differently are read as the text format defines them."""
    assert parse_text(f'msg: "{text}"', pb.RequestStatus).msg == expected


# Writing.

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
UINT64 = st.integers(0, 2**64 - 1)
MEMORY = st.builds(pb.InferSharedMemory, name=NAMES, offset=UINT64, byte_size=UINT64)
DIMS = st.lists(st.integers(0, 9), max_size=3)
REQUESTS = st.builds(
    pb.InferRequestHeader,
    batch_size=st.integers(0, 2**32 - 1),
    input=st.lists(
        st.builds(
            pb.InferRequestHeader.Input,
            name=NAMES,
            dims=DIMS,
            batch_byte_size=UINT64,
            shared_memory=st.none() | MEMORY,
        ),
        max_size=3,
    ),
    output=st.lists(
        st.builds(
            pb.InferRequestHeader.Output,
            name=NAMES,
            cls=st.none() | st.builds(pb.InferRequestHeader.Output.Class, count=st.integers(1, 9)),
            shared_memory=st.none() | MEMORY,
        ),
        max_size=3,
    ),
    correlation_id=UINT64,
    id=UINT64,
    flags=st.integers(0, 3),
    priority=st.integers(0, 9),
    timeout_microseconds=UINT64,
)
CLASS = st.builds(
    pb.InferResponseHeader.Output.Class,
    idx=st.integers(0, 2**31 - 1),
    value=st.floats(width=32),
    label=NAMES,
)
RESPONSES = st.builds(
    pb.InferResponseHeader,
    model_name=NAMES,
    model_version=st.integers(0, 2**63 - 1),
    batch_size=st.integers(0, 9),
    output=st.lists(
        st.builds(
            pb.InferResponseHeader.Output,
            name=NAMES,
            raw=st.none()
            | st.builds(pb.InferResponseHeader.Output.Raw, dims=DIMS, batch_byte_size=UINT64),
            batch_classes=st.lists(
                st.builds(pb.InferResponseHeader.Output.Classes, cls=st.lists(CLASS, max_size=3)),
                max_size=2,
            ),
        ),
        max_size=3,
    ),
    id=UINT64,
)


def read_back(line: str, kind: type[M]) -> M:
    assert line.isascii()
    assert line.isprintable()
    expected = by_library(line, kind)
    assert expected is not None
    assert str(expected) == str(by_hand(line, kind))
    return expected


@given(REQUESTS)
def test_request_line_round_trip(header: pb.InferRequestHeader) -> None:
    """An encoded NV-InferRequest decodes to the same message."""
    assert header == read_back(request_line(header), pb.InferRequestHeader)


@given(RESPONSES)
def test_response_line_round_trip(header: pb.InferResponseHeader) -> None:
    """An encoded NV-InferResponse decodes to the same message."""
    assert str(header) == str(read_back(response_line(header), pb.InferResponseHeader))


@given(st.sampled_from(range(1, 9)), st.text(max_size=20), UINT64)
def test_status_line_round_trip(code: int, text: str, number: int) -> None:
    """An encoded NV-Status decodes to the same message, whatever its text."""
    found = read_back(status_line(code, text, "inference:0", number), pb.RequestStatus)
    assert (code, number) == (found.code, found.request_id)
    assert text.encode("utf-8", "replace").decode() == found.msg
    assert f"msg: {quoted(text)}" in status_line(code, text, "i", 1) or not text


@given(st.floats(width=32, allow_nan=False))
def test_float_text_keeps_the_value(value: float) -> None:
    """A float of 32 bits survives its text form."""
    assert np.float32(float(float_text(value))) == np.float32(value)


def test_a_long_response_line_omits_the_classes() -> None:
    """Proxies and the client's HTTP library reject lines that are too long."""
    header = pb.InferResponseHeader(model_name="m")
    output = header.output.add(name="o")
    classes = output.batch_classes.add()
    for index in range(1000):
        classes.cls.add(idx=index, value=1.0, label="label")
    assert response_line(header) == 'model_name: "m" output { name: "o" }'
