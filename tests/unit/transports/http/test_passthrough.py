"""PassthroughRules: requests that are forwarded to an HTTP upstream."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

from gateway.app.passthrough import MAX_CONTAINERS, check_json_body
from gateway.ir.errors import MalformedMessage, TooLarge
from gateway.ir.limits import MessageLimits
from gateway.transports.http.passthrough import PassthroughRules, normal_path
from gateway.wire.http import Headers, HttpRequest

PREDICT = "/v1/models/m:predict"
CHECK = partial(check_json_body, MessageLimits())
POSTS = PassthroughRules(post=("/v1/models/*:predict",), check_body=CHECK)


def request(method: str, path: str, body: bytes = b"") -> HttpRequest:
    """Return a request without headers."""
    return HttpRequest(method, path, "", Headers([]), (body,))


def status(rules: PassthroughRules, method: str, path: str, body: bytes = b"") -> int | None:
    """Return the status of the rejection, None for a request that passes."""
    refusal = rules.refuse(request(method, path, body))
    return None if refusal is None else refusal.status


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_get_and_head_pass(method: str) -> None:
    """Methods that only read are safe to forward."""
    assert status(PassthroughRules(), method, "/v1/models/m") is None


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "FOO"])
def test_other_methods_are_rejected_by_default(method: str) -> None:
    """The gateway cannot know what they do on the upstream."""
    assert 405 == status(PassthroughRules(), method, PREDICT)


def test_posts_pass_to_listed_paths() -> None:
    """Other methods, other paths and oversized bodies are rejected."""
    assert status(POSTS, "POST", PREDICT, b'{"instances": [[1]]}') is None
    assert 405 == status(POSTS, "POST", "/v1/models/m:explain", b"{}")
    assert 405 == status(POSTS, "PUT", PREDICT, b"{}")
    assert 413 == status(POSTS, "POST", PREDICT, bytes((1 << 20) + 1))


@pytest.mark.parametrize(
    "path",
    [
        "/metrics",
        "/metrics/",
        "/METRICS",
        "//metrics",
        "/./metrics",
        "/x/../metrics",
        "/%6detrics",
        "/openapi.json",
        "/docs",
        "/docs/oauth2-redirect",
        "/redoc",
    ],
)
def test_operator_pages_are_rejected(path: str) -> None:
    """Every spelling that a server accepts is rejected; an allowed pattern lets all pass."""
    assert 404 == status(PassthroughRules(), "GET", path)
    assert status(PassthroughRules(allow=("/*",)), "GET", path) is None


def test_paths_are_normalized_as_servers_do() -> None:
    """Empty segments and dots are removed, and the case is folded."""
    assert "/a/b" == normal_path("//A/./x/..//%62/")


@pytest.mark.parametrize(
    ("body", "failure"),
    [
        (b"[" * 100 + b"]" * 100, TooLarge),
        (json.dumps([[1]] * MAX_CONTAINERS).encode(), TooLarge),
        (json.dumps(dict.fromkeys(map(str, range(10_001)))).encode(), TooLarge),
        (b' {"a": ', MalformedMessage),
    ],
)
def test_json_that_blocks_a_server_is_rejected(body: bytes, failure: type[Exception]) -> None:
    """20,000 rows block KServe for seconds."""
    with pytest.raises(failure):
        CHECK(memoryview(body))
    assert status(POSTS, "POST", PREDICT, body) in {400, 413}


@pytest.mark.parametrize(
    "body", [b"", b"a=1&b=2", json.dumps({"instances": [[1, 2]] * 9}).encode()]
)
def test_other_bodies_pass(body: Any) -> None:
    """Small bodies and bodies that are not JSON pass."""
    CHECK(memoryview(body))
    assert status(POSTS, "POST", PREDICT, body) is None
