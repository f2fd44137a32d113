"""Ids of responses over HTTP: which servers promise that of the request."""

from __future__ import annotations

import pytest

from gateway.ir.calls import InferRequest
from gateway.ir.context import ModelRef
from gateway.ir.errors import UpstreamProtocolError
from gateway.ir.limits import DEFAULT_LIMITS
from gateway.protocols.oip import SPEC
from gateway.protocols.oip.http.codec import HttpCodec
from gateway.wire.http import Headers, HttpResponse

CALL = InferRequest(model=ModelRef("m"), id="mine")
JSON = Headers((("Content-Type", "application/json"),))


def accepts(codec: HttpCodec, member: str) -> bool:
    """Return whether a response with this member `id`, "" for none, is a response to `CALL`."""
    body = f'{{{member}"model_name":"m","outputs":[]}}'.encode()
    try:
        codec.decode_reply(CALL, HttpResponse(200, JSON, (body,)))
    except UpstreamProtocolError:
        return False
    return True


@pytest.mark.parametrize(
    ("server", "without", "other"),
    [
        ("triton", False, False),
        ("mlserver", False, False),
        ("OpenVINO Model Server", False, False),
        ("tensor-gateway", False, False),
        ("kserve", True, True),
        ("a server of my own", True, False),
        ("", True, False),
    ],
)
def test_ids_of_responses(server: str, without: bool, other: bool) -> None:
    """A response without an id, or with another one, is accepted from certain servers only."""
    assert SPEC.resolve_dialect is not None
    codec = HttpCodec(DEFAULT_LIMITS, SPEC.resolve_dialect({}, server))
    for _ in range(4):  # later ones are read with a template
        assert accepts(codec, '"id":"mine",')
        assert without == accepts(codec, "")
        assert other == accepts(codec, '"id":"another",')
