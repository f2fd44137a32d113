"""PassthroughRules: requests that are forwarded to an HTTP upstream."""

from __future__ import annotations

import json
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.app.build.server_identity import ServerIdentity
from gateway.app.build.upstreams import BuiltUpstream
from gateway.app.listen.listeners import passthrough_rules
from gateway.config.models import PassthroughConfig
from gateway.frontend.passthrough import MAX_CONTAINERS, check_json_body
from gateway.ir.errors import MalformedMessage, TooLarge
from gateway.ir.limits import MessageLimits
from gateway.ir.metadata import ServerMetadata
from gateway.settings.units import parse_url
from gateway.transports.grpc.withheld import WithheldCalls
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


def test_posts_pass_to_known_paths_of_the_server() -> None:
    """Without a list, the paths that the server is known to have count; a list replaces them."""
    known = ("/v1/models/*:predict",)
    wire = request("POST", PREDICT, b'{"instances": [[1]]}')
    open_rules = passthrough_rules(PassthroughConfig(upstream="far"), MessageLimits())
    assert open_rules.refuse(wire, known) is None
    for refusal in (
        open_rules.refuse(wire),
        open_rules.refuse(request("POST", "/v1/models/m:explain"), known),
        passthrough_rules(PassthroughConfig(upstream="far", post=()), MessageLimits()).refuse(
            wire, known
        ),
    ):
        assert refusal is not None
        assert (405, "GET, HEAD") == (refusal.status, refusal.headers.get("allow"))
    other = open_rules.refuse(request("PUT", PREDICT), known)
    assert other is not None
    assert (405, "GET, HEAD, POST") == (other.status, other.headers.get("allow"))
    large = open_rules.refuse(request("POST", PREDICT, bytes((1 << 20) + 1)), known)
    assert large is not None
    assert 413 == large.status


@pytest.mark.parametrize(
    ("names", "posts"),
    [
        (["kserve"], True),
        (["KServe"], True),
        (["triton", "kserve"], True),
        (["triton"], False),
        ([None], False),
        ([], False),
    ],
)
def test_kserve_has_the_paths_of_its_first_protocol(names: list[str | None], posts: bool) -> None:
    """The name in the metadata of the server tells it; before that, nothing passes."""
    servers = [None if name is None else ServerMetadata(name, "1") for name in names]
    url = parse_url("oip+http://h:80")
    members = []
    for server in servers:
        identity = ServerIdentity("up", "h:80", url, "auto", WithheldCalls())
        identity(server)
        members.append(SimpleNamespace(identity=identity))
    found = BuiltUpstream.known_posts(cast("BuiltUpstream", SimpleNamespace(members=members)))
    assert (("/v1/models/*:predict", "/v1/models/*:explain") if posts else ()) == found


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
