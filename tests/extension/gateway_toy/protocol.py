"""The protocol toy: `POST /toy/MODEL` with integers, which spaces separate."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from gateway import api
from gateway.api import tensors as ir
from gateway.wire.errors import error_class_of_http, http_status_of
from gateway.wire.http import Buffer, HttpRequest, HttpResponse

PREFIX = "/toy/"


def write(tensors: Sequence[ir.Tensor]) -> tuple[bytes]:
    return (" ".join(map(str, ir.as_numpy(tensors[0]).reshape(-1).tolist())).encode(),)


def read(body: Sequence[Buffer]) -> tuple[ir.Tensor]:
    try:
        return (ir.array_tensor("", np.array(b"".join(body).split(), dtype=np.int64)),)
    except (ValueError, OverflowError) as error:
        raise ir.MalformedMessage("the body is no list of integers; expected `1 2 3`") from error


class ToyCodec(api.Codec[HttpRequest, HttpResponse]):
    name = "toy.http"
    needs = frozenset({ir.Need.NAMES, ir.Need.DATATYPES, ir.Need.SHAPES})

    def decode_call(self, wire: HttpRequest, _request_id: str = "", /) -> ir.Call[Any]:
        if wire.method != "POST" or not wire.path.startswith(PREFIX):
            raise ir.NotFound(f"{wire.method} {wire.path[:80]!r}; expected POST /toy/MODEL")
        model = ir.ModelRef(wire.path.removeprefix(PREFIX))
        context = ir.Context(self.name, client=wire.client, needs=self.needs)
        return ir.InferRequest(model=model, context=context, inputs=read(wire.body))

    def encode_reply(self, _call: ir.Call[Any], reply: Any, /) -> HttpResponse:
        return HttpResponse(200, body=write(reply.outputs))

    def encode_error(self, _call: ir.Call[Any] | None, error: ir.GatewayError, /) -> HttpResponse:
        text = error.message[:1000].encode("utf-8", "replace")
        return HttpResponse(http_status_of(error), body=(text,))

    def encode_call(self, call: ir.Call[Any], /) -> HttpRequest:
        if not isinstance(call, ir.InferRequest) or call.model is None:
            raise ir.Unsupported(f"toy has no {type(call).__name__}", model=call.model)
        return HttpRequest("POST", f"{PREFIX}{call.model.name}", body=write(call.inputs))

    def decode_reply(self, call: ir.Call[Any], wire: HttpResponse, /) -> Any:
        if wire.status != 200:
            text = b"".join(wire.body).decode("utf-8", "replace")
            raise error_class_of_http(wire.status)(text, model=call.model)
        return ir.InferResponse(model=call.model or ir.ModelRef(""), outputs=read(wire.body))


SPEC = api.ProtocolSpec(
    name="toy",
    title="Toy",
    page="https://toy.example",
    http=api.HttpBinding(codec=lambda _limits, _options: ToyCodec(), prefixes=("/toy",)),
)
