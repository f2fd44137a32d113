"""What holds for any body and form of TorchServe, and for any value of any datatype."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from gateway.ir.calls import Call, InferRequest, InferResponse, ModelMetadataRequest
from gateway.ir.context import ModelRef
from gateway.ir.errors import GatewayError
from gateway.ir.limits import DEFAULT_LIMITS
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Tensor, array_tensor, as_items, as_raw, items_tensor
from gateway.policies.complete.policy import Complete
from gateway.protocols.torchserve.declarations import BodyForm, read_declaration
from gateway.protocols.torchserve.grpc.codec import METHODS, GrpcCodec
from gateway.protocols.torchserve.http.codec import HttpCodec
from gateway.protocols.torchserve.http.form_fields import multipart_form, read_form
from gateway.wire.grpc import GrpcRequest
from gateway.wire.http import Headers, HttpRequest

FORMS = [
    {},
    {"request": "json"},
    {"request": "bytes"},
    {"request": "text"},
    {"request": "columns"},
    {"envelope": "json"},
    {"batch": "true"},
]
KINDS = [
    "",
    "application/json",
    "text/plain",
    "application/octet-stream",
    "application/x-www-form-urlencoded",
    "multipart/form-data; boundary=B",
]
BODIES = st.binary(max_size=60) | st.lists(
    st.sampled_from(
        [
            *(b"--B", b"\r\n", b"--", b'Content-Disposition: form-data; name="data"', b"[1]", b"{"),
            *(b"}", b'"a"', b":", b",", b"null", b"NaN", b"=", b"&", b"%41", b"\xff", b"instances"),
        ]
    ),
    max_size=12,
).map(b"".join)
NAMES = st.text("abcXYZ019_-. é/", min_size=1, max_size=12)


@given(BODIES, st.sampled_from(KINDS), st.sampled_from(FORMS))
def test_any_body_is_read_or_is_an_error_of_the_client(
    body: bytes, kind: str, form: dict[str, Any]
) -> None:
    """No other exception comes out of the codec, and a call has inputs."""
    codec = HttpCodec()
    codec.declare({"m": read_declaration(form, str)})
    headers = Headers((("Content-Type", kind),) if kind else ())
    try:
        call = codec.decode_call(HttpRequest("POST", "/predictions/m", "", headers, (body,)))
    except GatewayError as error:
        document = codec.encode_error(None, error)
        assert 400 <= document.status < 500
        return
    assert isinstance(call, InferRequest)
    assert call.inputs


@given(BODIES, st.sampled_from(sorted(METHODS)))
def test_any_message_is_read_or_is_an_error_of_the_client(body: bytes, method: str) -> None:
    """No other exception comes out of the codec."""
    codec = GrpcCodec()
    try:
        codec.decode_call(GrpcRequest(method, (memoryview(body),)))
    except GatewayError as error:
        codec.encode_error(None, error)


@given(st.dictionaries(NAMES, BODIES, min_size=1, max_size=4))
def test_a_multipart_form_is_read_back(fields: dict[str, bytes]) -> None:
    """Whatever the values are, boundaries among them."""
    kind, body = multipart_form(fields)
    found = read_form(memoryview(body), kind, DEFAULT_LIMITS)
    assert {name: bytes(item.view) for name, item in found.items()} == fields


class Loop:
    """A server that is the gateway's own frontend: it echoes the only input."""

    def __init__(self, codec: Any, declared: BodyForm, datatype: Datatype, rank: int) -> None:
        codec.declare({"m": declared})
        self._codec = codec
        shape = (-1,) * rank
        self._metadata = ModelMetadata(
            name="m",
            inputs=(TensorMetadata("x", datatype, shape),),
            outputs=(TensorMetadata("x", datatype, shape),),
            max_batch_size=0,
        )
        self.service = Complete(self._through, codec.needs)

    async def _through(self, call: Call[Any], /) -> Any:
        if isinstance(call, ModelMetadataRequest):
            return self._metadata
        received = self._codec.decode_call(self._codec.encode_call(call))
        reply = await Complete(self._model, frozenset())(received)
        return self._codec.decode_reply(call, self._codec.encode_reply(received, reply))

    async def _model(self, call: Call[Any], /) -> Any:
        if isinstance(call, ModelMetadataRequest):
            return self._metadata
        assert isinstance(call, InferRequest)
        return InferResponse(model=ModelRef("m"), outputs=call.inputs)


def tensors(datatype: Datatype, most: int) -> st.SearchStrategy[Tensor]:
    """Draw tensors; a field of a form has one element of BYTES, so that *most* is 1."""
    side = most if datatype is Datatype.BYTES else 3
    shapes = arrays.array_shapes(min_dims=1, max_dims=3, max_side=side)
    if datatype is Datatype.BYTES:
        items = st.text(max_size=8).map(str.encode)
        return shapes.flatmap(
            lambda shape: st.lists(
                items, min_size=int(np.prod(shape)), max_size=int(np.prod(shape))
            ).map(lambda found: items_tensor("x", shape, found))
        )
    if datatype is Datatype.BF16:
        finite = st.integers(0, 0x7F7F) | st.integers(0x8000, 0xFF7F)
        return arrays.arrays("<u2", shapes, elements=finite).map(
            lambda found: array_tensor("x", found, Datatype.BF16)
        )
    more: Any = {"allow_nan": False} if datatype.is_float else {}
    elements = arrays.from_dtype(np.dtype(datatype.numpy_dtype), **more)
    return arrays.arrays(datatype.numpy_dtype, shapes, elements=elements).map(
        lambda found: array_tensor("x", found, datatype)
    )


@pytest.mark.parametrize("codec", [HttpCodec, GrpcCodec])
@pytest.mark.parametrize("datatype", list(Datatype))
@given(form=st.sampled_from(["json", "columns", ""]), data=st.data())
@settings(max_examples=20)
def test_every_value_is_read_back(
    codec: Any, datatype: Datatype, form: str, data: st.DataObject
) -> None:
    """Through both sides of the codec, bit by bit."""
    tensor = data.draw(tensors(datatype, most=1 if form == "columns" else 3))
    declared = BodyForm(request=form, response="json")
    loop = Loop(codec(), declared, datatype, len(tensor.shape or ()))
    request = InferRequest(model=ModelRef("m"), inputs=(tensor,))
    reply: InferResponse = asyncio.run(loop.service(request))
    (found,) = reply.outputs
    assert (found.datatype, found.shape) == (datatype, tensor.shape)
    if datatype is Datatype.BYTES:
        assert [bytes(each) for each in as_items(found)] == list(as_items(tensor))
    else:
        assert bytes(as_raw(found)) == bytes(as_raw(tensor))
