"""The protocol toy: `POST /toy/MODEL` with integers, which spaces separate."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from gateway.api import Codec, HttpBinding, ProtocolSpec
from gateway.api.tensors import (
    Call,
    Context,
    ErrorCode,
    GatewayError,
    InferRequest,
    InferResponse,
    MalformedMessage,
    ModelRef,
    Need,
    NotFound,
    Tensor,
    Unsupported,
    array_tensor,
    as_numpy,
)
from gateway.wire.http import Buffer, HttpRequest, HttpResponse

PREFIX = "/toy/"


def write(tensors: Sequence[Tensor]) -> tuple[bytes]:
    return (" ".join(map(str, as_numpy(tensors[0]).reshape(-1).tolist())).encode(),)


def read(body: Sequence[Buffer]) -> tuple[Tensor]:
    try:
        return (array_tensor("", np.array(b"".join(body).split(), dtype=np.int64)),)
    except (ValueError, OverflowError) as error:
        raise MalformedMessage("the body is no list of integers; expected `1 2 3`") from error


class ToyCodec(Codec[HttpRequest, HttpResponse]):
    name = "toy.http"
    needs = frozenset({Need.NAMES, Need.DATATYPES, Need.SHAPES})

    def decode_call(self, wire: HttpRequest, _request_id: str = "", /) -> Call[Any]:
        if wire.method != "POST" or not wire.path.startswith(PREFIX):
            raise NotFound(f"{wire.method} {wire.path[:80]!r}; expected POST /toy/MODEL")
        model, context = ModelRef(wire.path.removeprefix(PREFIX)), Context(self.name)
        return InferRequest(model=model, context=context, inputs=read(wire.body))

    def encode_reply(self, _call: Call[Any], reply: Any, /) -> HttpResponse:
        return HttpResponse(200, body=write(reply.outputs))

    def encode_error(self, _call: Call[Any] | None, error: GatewayError, /) -> HttpResponse:
        status = {ErrorCode.NOT_FOUND: 404, ErrorCode.INTERNAL: 500}.get(error.code, 400)
        return HttpResponse(status, body=(error.message.encode("utf-8", "replace"),))

    def encode_call(self, call: Call[Any], /) -> HttpRequest:
        if not isinstance(call, InferRequest) or call.model is None:
            raise Unsupported(f"toy has no {type(call).__name__}", model=call.model)
        return HttpRequest("POST", f"{PREFIX}{call.model.name}", body=write(call.inputs))

    def decode_reply(self, call: Call[Any], wire: HttpResponse, /) -> Any:
        return InferResponse(model=call.model or ModelRef(""), outputs=read(wire.body))


SPEC = ProtocolSpec(
    name="toy",
    title="Toy",
    page="https://toy.example",
    http=HttpBinding(codec=lambda _limits, _options: ToyCodec(), prefixes=("/toy",)),
)
