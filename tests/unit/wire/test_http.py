from __future__ import annotations

import pytest

from gateway.wire.http import Headers, view_of


def test_a_field_is_looked_up_without_case() -> None:
    """Of a repeated field the first value counts."""
    headers = Headers((("X-A", "1"), ("x-a", "2"), ("B", "3")))
    assert ("1", "3", None) == (headers.get("x-a"), headers.get("b"), headers.get("c"))
    assert (("x-a", "1"), ("x-a", "2"), ("b", "3")) == headers.lowered


def test_a_repeated_field_is_told() -> None:
    """Whatever the case of its name; another one's repetition does not count."""
    headers = Headers((("X-A", "1"), ("x-a", "2"), ("B", "3")))
    assert [True, False, False] == [headers.repeats(name) for name in ("x-a", "b", "c")]
    assert not Headers((("X-A", "1"),)).repeats("x-a")


def test_what_fields_were_read_as_is_kept() -> None:
    """A reader is asked once, and again when another one was meanwhile; an error is not kept."""
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


def test_one_buffer_is_viewed_as_it_is() -> None:
    """Several are joined."""
    whole = memoryview(b"ab")
    assert whole is view_of((whole,))
    assert b"ab" == bytes(view_of([b"ab"]))
    assert b"abcd" == bytes(view_of((whole, b"cd")))
