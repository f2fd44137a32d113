"""The recorded inference on shared memory: its tensors are references to regions, not data."""

from __future__ import annotations

import json

from gateway.ir.calls import InferRequest
from gateway.ir.context import Context
from gateway.ir.tensors.data import SharedMemoryData
from tests.golden.open_inference import exchanges
from tests.golden.open_inference_tables import SHARED
from tests.golden.test_open_inference import listener, upstream

EXCHANGE = next(exchange for exchange in exchanges() if exchange.name == SHARED)


def decoded_call() -> InferRequest:
    """Return the call of the recorded request."""
    call = listener(EXCHANGE).decode_call(EXCHANGE.request)
    assert isinstance(call, InferRequest)
    return call


def test_the_request_references_shared_memory() -> None:
    """Input and output lie in regions, and are forwarded to the server unchanged."""
    call = decoded_call()
    assert SharedMemoryData("golden_in", 0, 24) == call.inputs[0].data
    assert SharedMemoryData("golden_out", 0, 24) == call.outputs[0].shared
    wire = upstream(EXCHANGE).encode_call(call)
    assert call.changed(context=Context()) == (
        listener(EXCHANGE).decode_call(wire).changed(context=Context())
    )


def test_the_response_references_shared_memory() -> None:
    """The output is in the requested region, and the client gets the server's response."""
    call = decoded_call()
    reply = upstream(EXCHANGE).decode_reply(call, EXCHANGE.response)
    assert SharedMemoryData("golden_out", 0, 24) == reply.outputs[0].data
    wire = listener(EXCHANGE).encode_reply(call, reply)
    assert json.loads(bytes(EXCHANGE.response.view)) == json.loads(bytes(wire.view))
