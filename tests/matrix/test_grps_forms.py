"""grps's other forms before every upstream: text and bytes arrive as one element, and come back.

What stands in a cell of the matrix is tensors; these are forms that no other protocol has.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest

from gateway.ir.context import ModelRef
from gateway.ir.datatypes import Datatype
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.wire.http import Headers, HttpRequest, HttpResponse
from tests.matrix.chains import gateway
from tests.properties.carries import WAYS, Carries

BY_UPSTREAM = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
OK = {"code": 200, "msg": "OK", "status": "SUCCESS"}
SOURCE = "gateway.backends.examples:identity_bytes"


@dataclass(frozen=True)
class Listener:
    """A listener of grps over HTTP, which is asked by hand."""

    name: str = "grps.http"
    codec: str = "grps.http"
    listener: dict[str, Any] = field(default_factory=dict)
    model: ModelRef | None = None

    async def infer(self, *_arguments: Any) -> Any:
        """Not asked so here."""
        raise AssertionError


async def send_body(way: Carries, kind: str, body: bytes) -> HttpResponse:
    """Return the answer to a body, before a model that gives one text back."""
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
        answer: HttpResponse = await transport.send(wire, deadline=None)
        return answer


@BY_UPSTREAM
async def test_a_text_is_one_element_and_comes_back_as_text(way: Carries) -> None:
    """Under the model's own name for it, whatever protocol lies between."""
    answer = await send_body(way, "application/json", '{"str_data": "Zoë 模型"}'.encode())
    assert (200, {"status": OK, "str_data": "Zoë 模型"}) == (
        answer.status,
        orjson.loads(answer.view),
    )


@BY_UPSTREAM
async def test_bytes_are_one_element_and_come_back_as_bytes(way: Carries) -> None:
    """Raw where the upstream carries bytes that are no text, refused in words where it does not."""
    data = bytes(range(256))
    answer = await send_body(way, "application/octet-stream", data)
    if way.text and not way.codec.startswith("grps"):
        assert 501 == answer.status
        assert "not UTF-8" in orjson.loads(answer.view)["status"]["msg"]
        return
    assert (200, "application/octet-stream") == (answer.status, answer.headers.get("content-type"))
    assert data == bytes(answer.view)


@BY_UPSTREAM
async def test_an_ndarray_is_no_text(way: Carries) -> None:
    """A model of text refuses numbers by name, before every upstream that lets it tell."""
    answer = await send_body(way, "application/json", b'{"ndarray": [1]}')
    assert 400 == answer.status, orjson.loads(answer.view)
    assert "FAILURE" == orjson.loads(answer.view)["status"]["status"]
