"""grps's other forms before every upstream: text and bytes arrive as one element, and return.

The cells of the matrix are tensors; these are forms that no other protocol has.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest

from gateway.ir.context import ModelRef
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensors.datatypes import Datatype
from gateway.wire.http import Headers, HttpRequest, HttpResponse
from tests.matrix.chains import gateway
from tests.properties.carries import WAYS, Carries

BY_UPSTREAM = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
OK = {"code": 200, "msg": "OK", "status": "SUCCESS"}
SOURCE = "gateway.backends.examples:identity_bytes"


@dataclass(frozen=True)
class Listener:
    """A listener of grps over HTTP, whose requests are written by hand."""

    name: str = "grps.http"
    codec: str = "grps.http"
    listener: dict[str, Any] = field(default_factory=dict)
    model: ModelRef | None = None

    async def infer(self, *_arguments: Any) -> Any:
        """Never called: the tests send bodies."""
        raise AssertionError


async def send_body(way: Carries, kind: str, body: bytes) -> HttpResponse:
    """Return the response to a body, from a model that returns its text."""
    model = (way.model or ModelRef("m")).name
    one = (Datatype.BYTES, (1,))
    metadata = ModelMetadata(
        name=model,
        max_batch_size=0,
        inputs=(TensorMetadata("INPUT0", *one),),
        outputs=(TensorMetadata("OUTPUT0", *one),),
    )
    headers = Headers((("Content-Type", kind),))
    path = "/grps/v1/infer/predict"
    wire = HttpRequest("POST", path, f"model={model}", headers, (body,))
    async with gateway(Listener(), way, model, SOURCE, metadata) as transport:
        response: HttpResponse = await transport.send(wire, deadline=None)
        return response


@BY_UPSTREAM
async def test_a_text_is_one_element_and_returns_as_text(way: Carries) -> None:
    """`str_data` of the request is `str_data` of the response, with every upstream protocol."""
    response = await send_body(way, "application/json", '{"str_data": "Zoë 模型"}'.encode())
    assert (200, {"status": OK, "str_data": "Zoë 模型"}) == (
        response.status,
        orjson.loads(response.view),
    )


@BY_UPSTREAM
async def test_bytes_are_one_element_and_return_as_bytes(way: Carries) -> None:
    """Bytes return raw where the upstream carries them; other upstreams reject them with a reason."""
    data = bytes(range(256))
    response = await send_body(way, "application/octet-stream", data)
    if way.text and not way.codec.startswith("grps"):
        assert 501 == response.status
        assert "not UTF-8" in orjson.loads(response.view)["status"]["msg"]
        return
    assert (200, "application/octet-stream") == (
        response.status,
        response.headers.get("content-type"),
    )
    assert data == bytes(response.view)


@BY_UPSTREAM
async def test_a_text_model_rejects_an_ndarray(way: Carries) -> None:
    """A model of text rejects numbers with status 400, with every upstream protocol."""
    response = await send_body(way, "application/json", b'{"ndarray": [1]}')
    assert 400 == response.status, orjson.loads(response.view)
    assert "FAILURE" == orjson.loads(response.view)["status"]["status"]
