"""Opaque calls: requests outside Open Inference, forwarded unchanged over the same carrier only."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.ir.calls import Call, OpaqueCall
from gateway.ir.context import ModelRef, Origin
from gateway.ir.errors import GatewayError, MalformedMessage, NotFound, TooLarge, Unsupported
from gateway.ir.limits import DEFAULT_LIMITS
from gateway.protocols.oip.grpc.codec import GrpcCodec
from gateway.protocols.oip.http.codec import HttpCodec
from gateway.wire.errors import MethodNotAllowed
from gateway.wire.http import Headers, HttpRequest, HttpResponse

ON = HttpCodec(DEFAULT_LIMITS, {"opaque": True})
UPSTREAM = HttpCodec(DEFAULT_LIMITS, {})
HEADERS = Headers(
    (
        ("Host", "gateway"),
        ("Content-Type", "text/x"),
        ("Content-Length", "4"),
        ("Authorization", "secret"),
        ("Inference-Header-Content-Length", "2"),
    )
)


def request_to(path: str, method: str = "POST") -> HttpRequest:
    """Return a request to *path* with four bytes."""
    return HttpRequest(method, path, "a=b", HEADERS, (b"data",))


def test_opaque_request_without_a_model_keeps_its_path() -> None:
    """The path of a repository by name has no model; without the option there is no such path."""
    call = ON.decode_call(request_to("/v2/repository/r/index"))
    assert call.model is None
    assert "/v2/repository/r/index" == UPSTREAM.encode_call(call).path
    with pytest.raises(NotFound):
        UPSTREAM.decode_call(request_to("/v2/models/m/explain"))


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE"])
def test_opaque_request_is_forwarded_with_the_targets_name(method: str) -> None:
    """Method, query, body and content headers are kept; the model is that of the target."""
    call = ON.decode_call(request_to("/v2/models/a%20b/versions/2/explain/more", method))
    assert isinstance(call, OpaqueCall)
    assert ModelRef("a b", "2") == call.model
    wire = UPSTREAM.encode_call(renamed(call, ModelRef("c", "7")))
    assert (method, "/v2/models/c/versions/7/explain/more") == (wire.method, wire.path)
    assert ("a=b", b"data") == (wire.query, bytes(wire.view))
    names = [name.lower() for name, _ in wire.headers]
    assert ["content-type", "inference-header-content-length"] == names


def renamed(call: Call[Any], model: ModelRef) -> Call[Any]:
    return call.changed(model=model).with_context(metadata=())


@pytest.mark.parametrize("path", ["/v2/%6dodels/m/explain%3bx", "/v2/models/%6d/e%78plain%3bx"])
def test_escaped_letters_do_not_hide_the_model_of_an_opaque_path(path: str) -> None:
    """The model is routed and renamed; required escapes are kept."""
    call = ON.decode_call(request_to(path))
    assert ModelRef("m") == call.model
    wire = UPSTREAM.encode_call(renamed(call, ModelRef("c")))
    assert "/v2/models/c/explain%3bx" == wire.path


@pytest.mark.parametrize("status", [200, 418, 500])
def test_opaque_response_is_forwarded_unchanged(status: int) -> None:
    """Status, body and headers are forwarded, even for an error; those of a hop are not."""
    call = ON.decode_call(request_to("/v2/models/m/explain"))
    response = HttpResponse(status, HEADERS, (b"because",))
    reply = UPSTREAM.decode_reply(call, response)
    assert Origin("oip.http", response) == reply
    wire = ON.encode_reply(call, reply)
    assert (status, b"because") == (wire.status, bytes(wire.view))
    names = {name.lower() for name, _ in wire.headers}
    assert {"content-type", "inference-header-content-length"} <= names
    assert {"host", "content-length"}.isdisjoint(names)


ESCAPED = "with escaped letters or digits"


@pytest.mark.parametrize(
    ("path", "method", "error", "text"),
    [
        ("/v2/../admin", "GET", NotFound, "."),
        ("/v2/models/m/%2e%2e/x", "GET", NotFound, "."),
        ("/v2/models/m/a%2Fb", "GET", NotFound, "."),
        ("/v2/models/m/a%5Cb", "GET", NotFound, "."),
        ("/v2//x", "GET", NotFound, "."),
        ("/v2/x/", "GET", NotFound, "."),
        ("/v2/x", "TRACE", NotFound, "."),
        ("/v2/models/%FF/x", "GET", MalformedMessage, "."),
        (f"/v2/models/{'m' * 300}/x", "GET", TooLarge, "."),
        ("/v2/models/m/infer", "GET", MethodNotAllowed, "."),
        ("/v2/%6Dodels/m/%69nfer", "GET", MethodNotAllowed, "."),
        # Servers decode a path, so checks of loading, inference and regions would be bypassed.
        ("/v2/%72epository/models/m/unload", "POST", NotFound, ESCAPED),
        ("/v2/repository/models/m/%6c%6F%61d", "POST", NotFound, ESCAPED),
        ("/v2/models/m/%69nfer", "POST", NotFound, ESCAPED),
        ("/v2/%6dodels/m/versions/1/infer", "POST", NotFound, ESCAPED),
        ("/v2/%73ystemsharedmemory/region/r/register", "POST", NotFound, ESCAPED),
        ("/v2/trace/%73etting", "POST", NotFound, ESCAPED),
    ],
)
def test_unsafe_and_modelled_paths_are_not_opaque(
    path: str, method: str, error: type[GatewayError], text: str
) -> None:
    """A path that a server could resolve to another one is rejected, and so is a modelled path."""
    with pytest.raises(error, match=text):
        ON.decode_call(request_to(path, method))


def test_other_codecs_reject_an_opaque_call() -> None:
    """A codec of another carrier or protocol rejects an opaque call by name."""
    call = ON.decode_call(request_to("/v2/models/m/explain"))
    with pytest.raises(Unsupported, match="opaque is not supported"):
        GrpcCodec(DEFAULT_LIMITS, {}).encode_call(call)
    foreign = OpaqueCall(message=Origin("other.http", object()))
    with pytest.raises(Unsupported, match=r"only other\.http understands"):
        UPSTREAM.encode_call(foreign)
