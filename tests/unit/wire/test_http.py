from __future__ import annotations

from gateway.wire.http import Headers


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
