"""What is expected of servers by their names, and of those with a name that the gateway lacks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.ir.calls import InferRequest
from gateway.ir.context import ModelRef
from gateway.ir.errors import UpstreamProtocolError
from gateway.ir.limits import DEFAULT_LIMITS, MessageLimits
from gateway.protocols.oip import SPEC
from gateway.protocols.oip.http.codec import HttpCodec
from gateway.wire.http import Headers, HttpRequest, HttpResponse

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


def codec_of(server: str, limits: MessageLimits = DEFAULT_LIMITS) -> HttpCodec:
    """Return the codec for a server of a name."""
    assert SPEC.resolve_dialect is not None
    return HttpCodec(limits, SPEC.resolve_dialect({}, server))


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
    codec = codec_of(server)
    for _ in range(4):  # later ones are read with a template
        assert accepts(codec, '"id":"mine",')
        assert without == accepts(codec, "")
        assert other == accepts(codec, '"id":"another",')


PLAIN = '{"inputs":[{"name":"x","datatype":"FP32","shape":[2],"data":[1.5,2]}]}'


def request(text: str, headers: Headers) -> HttpRequest:
    """Return an inference request."""
    return HttpRequest("POST", "/v2/models/m/infer", "", headers, (memoryview(text.encode()),))


def is_plain_json(written: HttpRequest) -> bool:
    """Return whether a request has no binary tensors, and asks for none."""
    names = {name.lower() for name, _ in written.headers}
    return not (
        "inference-header-content-length" in names or b"binary_data" in b"".join(written.body)
    )


def binary(data: str) -> tuple[str, Headers]:
    """Return a request with one binary input, and its headers."""
    text = PLAIN.replace('"data":[1.5,2]', '"parameters":{"binary_data_size":8}')
    length = ("Inference-Header-Content-Length", str(len(text)))
    return text + data, Headers((("Content-Type", "application/octet-stream"), length))


WITH_OUTPUTS = PLAIN.replace('{"inputs"', '{"outputs":[{"name":"y"}],"inputs"')
ASKS_BINARY = PLAIN.replace('{"inputs"', '{"parameters":{"binary_data_output":true},"inputs"')


@pytest.mark.parametrize(
    ("sent", "headers", "is_json"),
    [
        (PLAIN, JSON, True),
        (WITH_OUTPUTS, JSON, True),
        # Its client knows that the server has the extension.
        (*binary("12345678"), False),
        (ASKS_BINARY, JSON, False),
    ],
)
@pytest.mark.parametrize("server", ["a server of my own", "", "triton"])
def test_json_stays_json_before_an_unknown_server(
    server: str, sent: str, headers: Headers, is_json: bool
) -> None:
    """Not every server of Open Inference has the extension of binary tensors; Triton has it."""
    call = codec_of("").decode_call(request(sent, headers))
    for _ in range(4):  # later ones are written with a template
        found = codec_of(server).encode_call(call)
        assert (is_json and server != "triton") == is_plain_json(found)


def test_json_beyond_the_limit_is_binary() -> None:
    """The limit of JSON is for servers that would read it for long, so it refuses nothing here."""
    limits = replace(DEFAULT_LIMITS, json_bytes=1_000)
    sent = PLAIN.replace("[2]", "[5000]").replace("1.5,2", ",".join(["1.5"] * 5_000))
    call = codec_of("").decode_call(request(sent, JSON))
    assert is_plain_json(codec_of("").encode_call(call))
    assert not is_plain_json(codec_of("", limits).encode_call(call))
