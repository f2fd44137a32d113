"""A server that fails on an input of the wrong datatype: the client gets an exact error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gateway.ir.calls import InferRequest, ModelMetadataRequest
from gateway.ir.context import ModelRef, Origin
from gateway.ir.errors import GatewayError, InvalidRequest, Unsupported, UpstreamError
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import array_tensor, items_tensor
from gateway.ir.unread import is_refusal
from gateway.policies.complete.policy import Complete
from gateway.policies.signatures import Signatures
from gateway.settings.signature import SignatureConfig

M = ModelRef("m")
TEXT = items_tensor("x", (1,), [b"a"])
NUMBER = array_tensor("x", np.zeros(1, "<i4"))
FAILED = UpstreamError("TypeError: server.py, line 7", origin=Origin("oip.http", None))


class Server:
    """A server that fails, and declares one input unless it has no metadata."""

    def __init__(
        self,
        error: GatewayError,
        *,
        has_metadata: bool = True,
        datatype: Datatype = Datatype.INT32,
    ) -> None:
        self._error = error
        self._has_metadata = has_metadata
        self._datatype = datatype

    async def __call__(self, call: Any, /) -> Any:
        if not isinstance(call, ModelMetadataRequest):
            raise self._error
        if not self._has_metadata:
            raise Unsupported("no metadata")
        return ModelMetadata(name="m", inputs=(TensorMetadata("x", self._datatype, (-1,)),))


async def test_wrong_input_datatype_is_an_invalid_request() -> None:
    """The cause of the InvalidRequest is the server's own error."""
    with pytest.raises(InvalidRequest, match="it is BYTES, the model needs INT32") as raised:
        await Complete(Server(FAILED), frozenset())(InferRequest(model=M, inputs=(TEXT,)))
    assert FAILED is raised.value.__cause__


@pytest.mark.parametrize("has_metadata", [True, False])
async def test_other_failures_are_unchanged(has_metadata: bool) -> None:
    """A failure on a valid input, or of a model without metadata, is raised unchanged."""
    inputs = (NUMBER if has_metadata else TEXT,)
    server = Server(FAILED, has_metadata=has_metadata)
    with pytest.raises(UpstreamError, match="line 7"):
        await Complete(server, frozenset())(InferRequest(model=M, inputs=inputs))


async def test_invalid_request_of_the_server_is_unchanged() -> None:
    """Only an UpstreamError is compared with the metadata."""
    rejected = InvalidRequest("shape", origin=Origin("oip.http", None))
    with pytest.raises(InvalidRequest, match="shape"):
        await Complete(Server(rejected), frozenset())(InferRequest(model=M, inputs=(TEXT,)))


async def test_axes_of_a_signature_that_its_server_refuses_are_named() -> None:
    """The server that reports other axes refused the call, so the error is its own."""
    sent = InferRequest(model=M, inputs=(TEXT,), batch_size=1)
    refused = InvalidRequest("no such shape", origin=Origin("oip.http", None))
    declared = SignatureConfig.model_validate(
        {
            "inputs": [{"name": "x", "datatype": "BYTES", "shape": [-1, 1]}],
            "outputs": [{"name": "y", "datatype": "BYTES", "shape": [-1, 1]}],
        }
    )
    for signature, text in (
        (declared, r"has shape \[1, 1\] by .*NAME.signature"),
        (None, "^no such"),
    ):
        server = Server(refused, datatype=Datatype.BYTES)
        service = Signatures(server, {} if signature is None else {"m": signature})
        with pytest.raises(InvalidRequest, match=text) as raised:
            await Complete(service, frozenset())(sent)
        assert (raised.value.origin is refused.origin, is_refusal(raised.value)) == (True, False)
