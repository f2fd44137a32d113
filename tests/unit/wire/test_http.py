from __future__ import annotations

import pytest

from gateway.wire.http import ExtendedHeaders, Headers, view_of


def test_header_lookup_ignores_case() -> None:
    """The first value of a repeated header is returned."""
    headers = Headers((("X-A", "1"), ("x-a", "2"), ("B", "3")))
    assert ("1", "3", None) == (headers.get("x-a"), headers.get("b"), headers.get("c"))
    assert (("x-a", "1"), ("x-a", "2"), ("b", "3")) == headers.lowered


def test_repeated_header_is_detected() -> None:
    """The case of the name is ignored; another header's repetition does not count."""
    headers = Headers((("X-A", "1"), ("x-a", "2"), ("B", "3")))
    assert [True, False, False] == [headers.repeats(name) for name in ("x-a", "b", "c")]
    assert not Headers((("X-A", "1"),)).repeats("x-a")


def test_result_of_the_last_parser_is_cached() -> None:
    """Another parser replaces the result; an error is not cached."""
    headers = Headers((("A", "b"),))
    calls: list[Headers] = []

    def first(fields: Headers) -> int:
        calls.append(fields)
        return len(calls)

    def broken(_fields: Headers) -> int:
        raise ValueError("no number")

    assert [1, 1] == [headers.parsed_with(first), headers.parsed_with(first)]
    with pytest.raises(ValueError, match="no number"):
        headers.parsed_with(broken)
    assert 1 == headers.parsed_with(first)
    assert "b" == headers.parsed_with(lambda fields: fields.get("a"))
    assert 2 == headers.parsed_with(first)


def test_view_of_one_buffer_is_that_buffer() -> None:
    """Several buffers are joined."""
    whole = memoryview(b"ab")
    assert whole is view_of((whole,))
    assert b"ab" == bytes(view_of([b"ab"]))
    assert b"abcd" == bytes(view_of((whole, b"cd")))


def test_extended_headers_are_looked_up_as_one() -> None:
    """The fields of one message follow those that others have, too."""
    headers = ExtendedHeaders(Headers((("A", "1"),)), (("B", "2"), ("a", "3")))
    assert (("A", "1"), ("B", "2"), ("a", "3")) == headers.pairs
    assert ("1", "2") == (headers.get("a"), headers.get("b"))
    assert headers.repeats("a")
