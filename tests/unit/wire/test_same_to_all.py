"""Texts of JSON that say the same to every reader, and those that do not."""

from __future__ import annotations

import pytest

from gateway.ir.errors import GatewayError
from gateway.ir.limits import DEFAULT_LIMITS
from gateway.wire.http import Headers, HttpRequest
from gateway.wire.json.values import check_same_to_all
from gateway.wire.opaque import JsonMessages

LONG = b"1.0," * 5000 + b"1"


@pytest.mark.parametrize(
    ("text", "is_same", "has_words"),
    [
        (b'{"a":1}', True, False),
        (b'[{"a":["x:y", {"b": null}]}]', True, False),
        (b'{"a":1,"a":2}', False, False),
        (b'{"a":1,"\\u0061":2}', False, False),
        (b'[{"b":{"a":1,"a":2}}]', False, False),
        (b'{"a":1} {"a":2}', False, False),
        (b'\xef\xbb\xbf{"a":1}', False, False),
        (b'{"a":"\xff"}', False, False),
        ('{"a":1}'.encode("utf-16"), False, True),
        (b'{"a":[NaN]}', False, False),
        (b'{"a":[NaN]}', True, True),
        (b'{"a":[NaN],"a":1}', False, True),
        (b'{"a":[' + LONG + b"]}", True, False),
        (b'{"a":[' + LONG + b'],"a":1}', False, False),
        (b'{"a":[' + LONG + b'],"\\u0061":1}', False, False),
        (b'[{"a":1,"a":2},' + LONG + b"]", False, False),
        (b'{"a":[' + LONG + b",NaN]}", True, True),
        (b'{"a":' + b"[" * 100 + LONG + b"]" * 100 + b"}", False, False),
        (b'{"a":' + b"[" * 100 + b"]" * 100 + b"}", False, False),
    ],
)
def test_a_text_is_the_same_to_all_readers(text: bytes, is_same: bool, has_words: bool) -> None:
    """A key occurs once in an object, in any spelling, and nothing follows the text."""
    try:
        check_same_to_all(memoryview(text), "the body", DEFAULT_LIMITS, has_words=has_words)
    except GatewayError:
        assert not is_same
    else:
        assert is_same


@pytest.mark.parametrize(
    ("kinds", "passes"),
    [
        ((), True),
        (("application/json",), True),
        (("application/json; charset=UTF-8",), True),
        (('application/json;charset="utf-16"',), False),
        (("text/plain",), False),
        (("application/json", "application/json"), True),
        (("application/json", "text/plain"), False),
    ],
)
def test_a_body_is_json_in_utf_8(kinds: tuple[str, ...], passes: bool) -> None:
    """A server that reads another charset, or another of two types, would read another text."""
    headers = Headers([("Content-Type", kind) for kind in kinds])
    wire = HttpRequest("POST", "/", "", headers, (b'{"a":1}',))
    assert passes is JsonMessages(DEFAULT_LIMITS).is_plain(wire)


@pytest.mark.parametrize(
    ("kind", "body", "passes"),
    [
        ("application/x-www-form-urlencoded", b'{"a":1}', True),
        ("text/plain", b'{"a":1,"a":2}', False),
        ("text/plain; charset=utf-16", b'{"a":1}', False),
        ("image/jpeg", b"\xff\xd8", False),
    ],
)
def test_a_body_may_be_json_of_any_type(kind: str, body: bytes, passes: bool) -> None:
    """Servers that ignore the content type read JSON whatever it is, as `curl -d` sends it."""
    wire = HttpRequest("POST", "/", "", Headers([("Content-Type", kind)]), (body,))
    assert passes is JsonMessages(DEFAULT_LIMITS, is_always_json=True).is_plain(wire)
