"""Rules for headers: names, values, pseudo-headers, and connection-specific headers."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.transports.http2.field_rules import broken_fields, content_length

PSEUDO = frozenset({b":path", b":method"})
# As RFC 9113 8.2.1 says it, a field at a time.
_NAME = re.compile(rb":?[\x21-\x39\x3b-\x40\x5b-\x7e]+\Z")
_VALUE = re.compile(rb"[^\0\r\n]*\Z")


@given(
    fields=st.lists(
        st.tuples(st.binary(max_size=3) | st.just(b"x-a"), st.binary(max_size=3)), max_size=4
    )
)
def test_names_and_values_are_checked_as_by_rfc_9113(fields: list[tuple[bytes, bytes]]) -> None:
    """The check of all fields at once agrees with the rules for single fields."""
    plain = [(b"x" + name, value) for name, value in fields]
    right = all(_NAME.match(name) and _VALUE.match(value) for name, value in plain)
    assert right is (broken_fields(plain, PSEUDO) is None)


@pytest.mark.parametrize(
    ("names", "why"),
    [
        ([b":path", b":method", b"x"], None),
        ([b":path", b":path"], "pseudo-header"),
        ([b":path", b"x", b":method"], "pseudo-header"),
        ([b":status"], "pseudo-header"),
        ([b":"], "pseudo-header"),
        ([], None),
        ([b""], "a name"),
        ([b":path", b"", b"x"], "a name"),
        ([b":path", b"x:y"], "pseudo-header"),
        ([b":", b":"], "pseudo-header"),
        ([b":path:"], "pseudo-header"),
        ([b"x:"], "pseudo-header"),
        ([b"x", b"upgrade"], "connection-specific"),
    ],
)
def test_pseudo_headers_are_known_unique_and_first(names: list[bytes], why: str | None) -> None:
    """Connection-specific and malformed names are errors, too."""
    found = broken_fields([(name, b"") for name in names], PSEUDO)
    if why is None:
        assert found is None
    else:
        assert why in str(found)


def test_content_length_is_one_number() -> None:
    """It is absent or one number, which may be repeated; any other value is an error."""
    assert content_length([(b"x", b"1")]) is None
    assert 7 == content_length([(b"content-length", b"7"), (b"content-length", b"7")])
    for values in ([b"7", b"8"], [b""], [b"-1"], [b"7, 7"]):
        with pytest.raises(ValueError):  # noqa: PT011  # which, its caller says
            content_length([(b"content-length", value) for value in values])
