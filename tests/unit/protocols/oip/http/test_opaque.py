"""What Open Inference has no model of: passed on as it is, between like and like only."""

from __future__ import annotations

import pytest

from gateway.ir.calls import OpaqueCall
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


def asking(path: str, method: str = "POST") -> HttpRequest:
    """Return a request of *path* with four bytes."""
    return HttpRequest(method, path, "a=b", HEADERS, (b"data",))


def test_off_by_default() -> None:
    """A path that is not modelled is not found."""
    with pytest.raises(NotFound):
        UPSTREAM.decode_call(asking("/v2/models/m/explain"))


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE"])
def test_goes_on_under_the_targets_name(method: str) -> None:
    """Method, query, body and what describes it stay; the model may be called otherwise there."""
    call = ON.decode_call(asking("/v2/models/a%20b/versions/2/explain/more", method))
    assert isinstance(call, OpaqueCall)
    assert ModelRef("a b", "2") == call.model
    there = call.changed(model=ModelRef("c", "7")).with_context(metadata=())
    wire = UPSTREAM.encode_call(there)
    assert (method, "/v2/models/c/versions/7/explain/more", "a=b", b"data") == (
        wire.method,
        wire.path,
        wire.query,
        bytes(wire.view),
    )
    assert ["Content-Type", "Inference-Header-Content-Length"] == [name for name, _ in wire.headers]


def test_questions_to_the_server_keep_their_path() -> None:
    """A repository by name is such a one."""
    call = ON.decode_call(asking("/v2/repository/r/index"))
    assert call.model is None
    assert "/v2/repository/r/index" == UPSTREAM.encode_call(call).path


@pytest.mark.parametrize("status", [200, 418, 500])
def test_the_answer_is_the_servers(status: int) -> None:
    """Status, type and body; nothing of the connection, and no error of ours is made of it."""
    call = ON.decode_call(asking("/v2/models/m/explain"))
    answer = HttpResponse(status, HEADERS, (b"because",))
    reply = UPSTREAM.decode_reply(call, answer)
    assert Origin("oip.http", answer) == reply
    wire = ON.encode_reply(call, reply)
    assert (status, b"because") == (wire.status, bytes(wire.view))
    assert ["Content-Type", "Inference-Header-Content-Length"] == [name for name, _ in wire.headers]


@pytest.mark.parametrize(
    ("path", "method", "error"),
    [
        ("/v2/../admin", "GET", NotFound),
        ("/v2/models/m/%2e%2e/x", "GET", NotFound),
        ("/v2/models/m/a%2Fb", "GET", NotFound),
        ("/v2/models/m/a%5Cb", "GET", NotFound),
        ("/v2//x", "GET", NotFound),
        ("/v2/x/", "GET", NotFound),
        ("/v2/x", "TRACE", NotFound),
        ("/v2/models/%FF/x", "GET", MalformedMessage),
        (f"/v2/models/{'m' * 300}/x", "GET", TooLarge),
        ("/v2/models/m/infer", "GET", MethodNotAllowed),
        ("/v2/%6Dodels/m/%69nfer", "GET", MethodNotAllowed),
    ],
)
def test_paths_that_are_not_passed_on(path: str, method: str, error: type[GatewayError]) -> None:
    """What could lead elsewhere at the server goes nowhere; what is modelled is not opaque."""
    with pytest.raises(error):
        ON.decode_call(asking(path, method))


@pytest.mark.parametrize(
    "path",
    [
        "/v2/%72epository/models/m/unload",
        "/v2/repository/models/m/%6c%6F%61d",
        "/v2/models/m/%69nfer",
        "/v2/%6dodels/m/versions/1/infer",
        "/v2/%73ystemsharedmemory/region/r/register",
        "/v2/trace/%73etting",
    ],
)
def test_escaped_letters_do_not_make_a_modelled_path_opaque(path: str) -> None:
    """Servers decode the path, so the checks of loading, inference and regions would be missed."""
    with pytest.raises(NotFound, match="with escaped letters or digits"):
        ON.decode_call(asking(path))


@pytest.mark.parametrize("path", ["/v2/%6dodels/m/explain%3bx", "/v2/models/%6d/e%78plain%3bx"])
def test_escaped_letters_do_not_hide_the_model_of_an_opaque_path(path: str) -> None:
    """The model is routed and renamed; what has to be escaped stays as it is."""
    call = ON.decode_call(asking(path))
    assert ModelRef("m") == call.model
    there = call.changed(model=ModelRef("c")).with_context(metadata=())
    assert "/v2/models/c/explain%3bx" == UPSTREAM.encode_call(there).path


def test_nobody_else_can_read_it() -> None:
    """Another carrier or protocol refuses it by name."""
    call = ON.decode_call(asking("/v2/models/m/explain"))
    with pytest.raises(Unsupported, match="OpaqueCall"):
        GrpcCodec(DEFAULT_LIMITS, {}).encode_call(call)
    foreign = OpaqueCall(message=Origin("other.http", object()))
    with pytest.raises(Unsupported, match=r"only other\.http understands"):
        UPSTREAM.encode_call(foreign)
