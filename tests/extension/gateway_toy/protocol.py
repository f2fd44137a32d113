"""The protocol toy: `POST /toy/MODEL` with integers, which spaces separate."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from gateway import api
from gateway.api import tensors as ir
from gateway.api import wire

PREFIX = "/toy/"


def write(tensors: Sequence[ir.Tensor]) -> tuple[bytes]:
    return (" ".join(map(str, ir.as_numpy(tensors[0]).reshape(-1).tolist())).encode(),)


def read(body: Sequence[wire.Buffer]) -> tuple[ir.Tensor]:
    try:
        return (ir.array_tensor("", np.array(b"".join(body).split(), dtype=np.int64)),)
    except (ValueError, OverflowError) as error:
        raise ir.MalformedMessage("the body is no list of integers; expected `1 2 3`") from error


class ToyCodec(api.Codec[wire.HttpRequest, wire.HttpResponse]):
    name = "toy.http"
    needs = frozenset({ir.Need.NAMES, ir.Need.DATATYPES, ir.Need.SHAPES})

    def decode_call(self, message: wire.HttpRequest, _request_id: str = "", /) -> ir.Call[Any]:
        if message.method != "POST" or not message.path.startswith(PREFIX):
            raise ir.NotFound(f"{message.method} {message.path[:80]!r}; expected POST /toy/MODEL")
        model = ir.ModelRef(message.path.removeprefix(PREFIX))
        context = ir.Context(self.name, client=message.client, needs=self.needs)
        return ir.InferRequest(model=model, context=context, inputs=read(message.body))

    def encode_reply(self, _call: ir.Call[Any], reply: Any, /) -> wire.HttpResponse:
        return wire.HttpResponse(200, body=write(reply.outputs))

    def encode_error(
        self, _call: ir.Call[Any] | None, error: ir.GatewayError, /
    ) -> wire.HttpResponse:
        text = error.message[:1000].encode("utf-8", "replace")
        return wire.HttpResponse(wire.http_status_of(error), body=(text,))

    def encode_call(self, call: ir.Call[Any], /) -> wire.HttpRequest:
        if not isinstance(call, ir.InferRequest) or call.model is None:
            raise ir.Unsupported(f"toy has no {type(call).__name__}", model=call.model)
        return wire.HttpRequest("POST", f"{PREFIX}{call.model.name}", body=write(call.inputs))

    def decode_reply(self, call: ir.Call[Any], message: wire.HttpResponse, /) -> Any:
        if message.status != 200:
            text = b"".join(message.body).decode("utf-8", "replace")
            raise wire.error_class_of_http(message.status)(text, model=call.model)
        return ir.InferResponse(model=call.model or ir.ModelRef(""), outputs=read(message.body))


SPEC = api.ProtocolSpec(
    name="toy",
    title="Toy",
    page="https://toy.example",
    http=api.HttpBinding(codec=lambda _limits, _options: ToyCodec(), prefixes=("/toy",)),
)
