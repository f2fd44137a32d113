"""Errors as JSON: what each protocol's form writes, the form reads; texts, kinds and statuses."""

import json
from dataclasses import replace

import pytest

from gateway.ir.context import ModelRef, Origin
from gateway.ir.errors import (
    ERROR_CLASSES,
    ErrorCode,
    GatewayError,
    NotReady,
    UpstreamError,
    UpstreamProtocolError,
)
from gateway.ir.limits import DEFAULT_LIMITS, MessageLimits
from gateway.protocols.mlflow.errors import FORM as MLFLOW
from gateway.protocols.oip.http.codec import error_form
from gateway.protocols.seldon.errors import FORM as SELDON
from gateway.protocols.tfs.errors import FORM as TFS
from gateway.protocols.torchserve.errors import FORM as TORCHSERVE
from gateway.wire.http import HttpResponse
from gateway.wire.json.errors import JsonErrorForm, JsonErrorReader

FORMS = [MLFLOW, SELDON, TFS, TORCHSERVE]
MODEL = ModelRef("m")
READER = JsonErrorReader(codec="x.http", texts=(("a", "b"), ("c",)), kind=("k",))


def response(body: bytes, status: int = 500) -> HttpResponse:
    return HttpResponse(status, body=(body,))


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.codec)
@pytest.mark.parametrize("code", ErrorCode, ids=lambda code: code.value)
def test_form_reads_what_it_writes(form: JsonErrorForm, code: ErrorCode) -> None:
    """Text and response of an error survive, whatever its code is, and so does its kind."""
    wire = form.write(ERROR_CLASSES[code]("it broke"), DEFAULT_LIMITS)
    found = form.read(MODEL, wire, DEFAULT_LIMITS)
    assert found.origin is not None
    assert ("it broke", MODEL, wire) == (found.message, found.model, found.origin.wire)
    if form.keeps_status:
        again = form.write(found, DEFAULT_LIMITS)
        assert (wire.status, wire.body) == (again.status, again.body)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.codec)
def test_text_has_a_limit(form: JsonErrorForm) -> None:
    """A long text is cut in both directions."""
    limits, error = MessageLimits(error_text_bytes=16), UpstreamError("x" * 99)
    assert b'"xxxxxxxxxxxxx..."' in bytes(form.write(error, limits).view)
    whole = form.write(error, DEFAULT_LIMITS)
    assert "xxxxxxxxxxxxx..." == form.read(None, whole, limits).message


@pytest.mark.parametrize(
    ("body", "text", "kind"),
    [
        (b'{"a":{"b":"first"},"c":"second","k":"K"}', "first", "K"),
        (b'{"a":{"b":1},"c":"second","k":2}', "second", None),
        (b'{"a":"no object"}', '{"a":"no object"}', None),
        (b"[1]", "[1]", None),
        (b"plain", "plain", None),
        (b"", "upstream responded with status 500 and no text", None),
        (b'{"c":""}', "upstream responded with status 500 and no text", None),
        (b'Traceback (most recent call last):\n  File "x"\nKeyError: 1', "KeyError: 1", None),
    ],
)
def test_first_text_of_the_document_counts(body: bytes, text: str, kind: str | None) -> None:
    """A document has its text at one of several paths; without one the body is the text."""
    found = READER.read(MODEL, response(body), DEFAULT_LIMITS)
    assert (text, UpstreamError) == (found.message, type(found))
    assert Origin("x.http", response(body), kind) == found.origin


def test_redirection_is_an_error_of_the_upstream() -> None:
    """A status that is none of an error reaches clients of the server's own form alone."""
    found = MLFLOW.read(MODEL, response(b"", 302), DEFAULT_LIMITS)
    assert UpstreamProtocolError is type(found)
    assert 302 == MLFLOW.write(found, DEFAULT_LIMITS).status
    assert 502 == replace(MLFLOW, codec="x.http").write(found, DEFAULT_LIMITS).status
    assert (
        replace(MLFLOW, passes=False).read(MODEL, response(b"", 302), DEFAULT_LIMITS).origin is None
    )
    assert "status 302: expected 200; redirections are not followed" in found.message


def test_status_of_a_listener_is_its_own() -> None:
    """The status of "not ready" is an option of Open Inference; a row replaces any status."""
    form, error = error_form(409), NotReady("later")
    assert 409 == form.write(error, DEFAULT_LIMITS).status
    wire = form.write(error, DEFAULT_LIMITS, (("x-extra", "1"),), (400, ""))
    assert (400, {"error": "later"}) == (wire.status, json.loads(bytes(wire.view)))
    assert "1" == wire.headers.get("x-extra")


def test_status_of_another_codec_is_not_kept() -> None:
    """Only an error of a server of the same codec keeps its status and kind."""

    def status(codec: str) -> int:
        origin = Origin(codec, response(b"", 418), "TEAPOT")
        error: GatewayError = UpstreamError("hot", origin=origin)
        return SELDON.write(error, DEFAULT_LIMITS).status

    assert (418, 500) == (status("seldon.http"), status("oip.http"))
