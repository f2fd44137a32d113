"""The seeded faults: each is one small change of `faulty_server.py` that a rule of the protocol forbids."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from aiohttp import web

from tests.conformance.faulty_server import (
    DTYPES,
    LENGTH,
    Fault,
    Inference,
    Response,
    ServerError,
    Tensor,
    array,
)

# Outputs of either carrier.

Change = Callable[[Tensor], Tensor]


def _each(change: Change, *datatypes: str) -> Callable[[list[Tensor], Inference], list[Tensor]]:
    """Return a fault that changes each output of these datatypes; of all if there are none."""

    def changed(outputs: list[Tensor], _call: Inference) -> list[Tensor]:
        return [
            change(each) if not datatypes or each.datatype in datatypes else each
            for each in outputs
        ]

    return changed


def _values(change: Callable[[Any], Any]) -> Change:
    return lambda tensor: replace(tensor, values=change(tensor.values))


def _rounded(values: Any) -> Any:
    """Keep six of the ten bits of an FP16's fraction."""
    return (values.view("<u2") & 0xFFF0).view("<f2")


def _saturated(values: Any) -> Any:
    return np.clip(values, -(2**31), 2**31 - 1)


def _top_k(outputs: list[Tensor], call: Inference) -> list[Tensor]:
    if not any(each.classes for each in call.outputs):
        return outputs
    return [
        replace(each, shape=(len(each.values) - 1,), values=each.values[1:]) for each in outputs
    ]


def _worst_first(outputs: list[Tensor], call: Inference) -> list[Tensor]:
    if not any(each.classes for each in call.outputs):
        return outputs
    return [replace(each, values=each.values[::-1]) for each in outputs]


def _refuse_zero(call: Inference) -> Inference:
    if any(0 in each.shape for each in call.inputs):
        raise ServerError("INVALID_ARGUMENT", "a dimension is 0")
    return call


def _refuse_parameters(call: Inference) -> Inference:
    known = {"sequence_id", "sequence_start", "sequence_end", "binary_data_output"}
    if set(call.parameters) - known:
        raise ServerError("INVALID_ARGUMENT", "unknown parameters")
    return call


def _without_outputs(call: Inference) -> Inference:
    return replace(call, outputs=())


def _four_bytes_more(data: bytes, tensor: Tensor) -> bytes:
    """Count the length of a text with the four bytes of the length itself."""
    if tensor.datatype != "BYTES":
        return data
    return b"".join((len(each) + 4).to_bytes(4, "little") + each for each in tensor.values)


def _big_endian(data: bytes, tensor: Tensor) -> bytes:
    if tensor.datatype == "BYTES":
        return data
    return tensor.values.astype(np.dtype(DTYPES[tensor.datatype]).newbyteorder(">")).tobytes()


def _lower_half(data: bytes, tensor: Tensor) -> bytes:
    """Take the lower half of an FP32 for a BF16."""
    return bytes(len(data)) if tensor.datatype == "BF16" else data


_NAMED_OTHERWISE = _each(lambda tensor: replace(tensor, name=tensor.name.lower()))
_ANOTHER_SHAPE = _each(lambda tensor: replace(tensor, shape=(1, *tensor.shape)))
_NO_MINUS = _each(_values(lambda values: values + values.dtype.type(0)), "FP32", "FP64")
_NO_NAN = _each(_values(np.nan_to_num), "FP16", "FP32", "FP64")
_DOUBLE = _each(
    _values(lambda values: np.clip(values.astype("f8"), -(2.0**63), 2.0**63 - 1024).astype("i8")),
    "INT64",
)
_SIGNED = _each(_values(lambda values: np.minimum(values, 2**63 - 1)), "UINT64")
_TEXT = _each(
    _values(lambda values: array([each.rstrip(b"\0") for each in values], "BYTES")), "BYTES"
)
_CAPITALS = _each(
    _values(lambda values: array([each.upper() for each in values], "BYTES")), "BYTES"
)
_ROUNDED = _each(_values(_rounded), "FP16")
_SATURATED = _each(_values(_saturated), "INT64", "UINT64", "UINT32")


def _swapped(outputs: list[Tensor], _call: Inference) -> list[Tensor]:
    """Give the values of the first output under the name of the second one."""
    names = [each.name for each in outputs]
    return [replace(each, name=name) for each, name in zip(outputs, reversed(names), strict=True)]


# HTTP.


def _on(path: str, change: Callable[[Response], Any]) -> Callable[[Response], Response]:
    """Return a fault of the responses with a path that ends so, where the call did not fail."""

    def changed(response: Response) -> Response:
        if response.status == 200 and response.path.endswith(path):
            change(response)
        return response

    return changed


def _status(status: int) -> Callable[[Response], None]:
    def change(response: Response) -> None:
        response.status = status

    return change


def _without(*members: str) -> Callable[[Response], None]:
    def change(response: Response) -> None:
        for member in members:
            response.document.pop(member, None)

    return change


def _of_metadata(change: Callable[[Response], None]) -> Callable[[Response], Response]:
    def changed(response: Response) -> None:
        if isinstance(response.document, dict) and "inputs" in response.document:
            change(response)

    return _on("", changed)


def _other_datatypes(response: Response) -> None:
    for each in response.document["inputs"]:
        each["datatype"] = f"TYPE_{each['datatype']}"


def _text_shapes(response: Response) -> None:
    for each in response.document["inputs"]:
        each["shape"] = ",".join(map(str, each["shape"]))


def _of_outputs(change: Callable[[dict[str, Any]], Any]) -> Callable[[Response], Response]:
    def changed(response: Response) -> None:
        for each in response.document["outputs"]:
            change(each)

    return _on("/infer", changed)


def _bits(output: dict[str, Any]) -> None:
    if output["datatype"] == "BOOL" and "data" in output:
        output["data"] = [int(each) for each in output["data"]]


def _texts(output: dict[str, Any]) -> None:
    if "INT" in output["datatype"] and "data" in output:
        output["data"] = [str(each) for each in output["data"]]


def _null_for_nan(
    write: Callable[[Tensor], list[Any]], tensor: Tensor
) -> Callable[[Tensor], list[Any]]:
    if tensor.datatype not in {"FP32", "FP64"}:
        return write
    return lambda found: [float(each) if np.isfinite(each) else None for each in found.values]


def _failed(change: Callable[[Response], Any]) -> Callable[[Response], Response]:
    def changed(response: Response) -> Response:
        if response.status >= 400:
            change(response)
        return response

    return changed


def _page(response: Response) -> None:
    response.document = b"<html><body><h1>Not found</h1></body></html>"
    response.headers["Content-Type"] = "text/html"


def _renamed_error(response: Response) -> None:
    response.document = {"message": response.document["error"]}


def _accept_malformed(response: Response) -> None:
    if "malformed" in response.document["error"]:
        response.status, response.document = 200, {"outputs": []}


def _length_off(response: Response) -> None:
    if response.parts:
        response.headers[LENGTH] = "1"


def _size_off(response: Response) -> None:
    if response.parts:
        response.document["outputs"][0]["parameters"]["binary_data_size"] += 1


def _json_always(call: Inference) -> Inference:
    outputs = tuple(replace(each, binary=False) for each in call.outputs)
    return replace(call, binary=False, outputs=outputs)


def _wire(act: Callable[[web.Request], Any]) -> Callable[..., Any]:
    """Return a fault that acts in place of the server, from the sixth request on."""

    def choose(nothing: Any, request: web.Request, count: int) -> Any:
        async def broken(_request: web.Request) -> Any:
            return await act(request)

        return broken if count > 5 else nothing

    return choose


async def _hang(_request: Any) -> None:
    await asyncio.sleep(3600)


async def _close(request: web.Request) -> web.Response:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def _garbage(request: web.Request) -> web.Response:
    assert request.transport is not None
    request.transport.write(b"\x1b[31m\x00\xff garbage \r\n\r\n")
    request.transport.close()
    return web.Response()


async def _flood(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    with suppress(ConnectionError):
        while True:
            await response.write(b"[" * 65536)
    return response


# gRPC.


def _message(method: str, change: Callable[[Any], Any]) -> Callable[[Any, str, Any], Any]:
    """Return a fault of the responses of one method; a change may return another message."""

    def changed(message: Any, called: str, _request: Any) -> Any:
        if called != method:
            return message
        found = change(message)
        return message if found is None else found

    return changed


def _set(**fields: Any) -> Callable[[Any], None]:
    def change(message: Any) -> None:
        for name, value in fields.items():
            setattr(message, name, value)

    return change


def _clear(name: str) -> Callable[[Any], None]:
    return lambda message: message.ClearField(name)


def _grpc_datatypes(message: Any) -> None:
    for each in message.inputs:
        each.datatype = f"TYPE_{each.datatype}"


def _typed_too(message: Any) -> None:
    for each in message.outputs:
        each.contents.bytes_contents.append(b"x")


def _code(code: str) -> Callable[[ServerError, str], ServerError]:
    return lambda error, *_: ServerError(code, error.text)


def _succeed(method: str, message: bytes = b"") -> Callable[[Any, str], Any]:
    """Return a fault that answers the errors of a method with an empty message and OK."""
    return lambda error, called: message if called == method else error


def _grpc_wire(act: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda nothing, _method, count: act if count > 5 else nothing


def _every_time(result: Any) -> Callable[..., Any]:
    """Return a fault that answers all but the first calls of unary methods with these bytes."""
    counted = iter(range(10**9))
    return lambda message, *_: result if next(counted) > 5 else message


# Streams.


def _forever(messages: Iterator[Any], _request: Any) -> Iterator[Any]:
    found = list(messages)
    while True:
        yield from found


def _open(messages: Iterator[Any], _request: Any) -> Iterator[Any]:
    yield from messages
    yield 3600.0


def _error_ends(messages: Iterator[Any], _request: Any) -> Iterator[Any]:
    for message in messages:
        if message.error_message:
            yield ServerError("INVALID_ARGUMENT", message.error_message)
            return
        yield message


def _bare(messages: Iterator[Any], _request: Any) -> Iterator[Any]:
    """Send the inner messages, as MLServer does."""
    for message in messages:
        yield message.infer_response


def _silent(_messages: Iterator[Any], _request: Any) -> Iterator[Any]:
    yield from ()


def _fault(carrier: str, name: str, point: str, change: Any, *rules: str) -> Fault:
    return Fault(f"{carrier}_{name}", carrier, point, change, rules)


FAULTS = (
    # HTTP: health and metadata.
    _fault("http", "live_500", "response", _on("/health/live", _status(500)), "health.live"),
    _fault(
        "http",
        "model_not_ready",
        "response",
        _on("/ready", _status(400)),
        "health.ready",
        "health.model_ready",
    ),
    _fault(
        "http",
        "unknown_model_accepted",
        "check",
        "model",
        "health.model_ready.unknown",
        "metadata.model.unknown",
        "errors.unknown_model",
    ),
    _fault(
        "http", "server_without_name", "response", _on("/v2", _without("name")), "metadata.server"
    ),
    _fault(
        "http",
        "metadata_without_inputs",
        "response",
        _of_metadata(_without("inputs")),
        "metadata.model",
    ),
    _fault(
        "http", "metadata_datatypes", "response", _of_metadata(_other_datatypes), "metadata.model"
    ),
    _fault(
        "http", "metadata_shape_as_text", "response", _of_metadata(_text_shapes), "metadata.model"
    ),
    # HTTP: what a request is checked for.
    _fault(
        "http",
        "version_ignored",
        "check",
        "version",
        "metadata.model.unknown_version",
        "forms.version.unknown",
    ),
    _fault("http", "unknown_output_ignored", "check", "output", "forms.outputs.unknown"),
    _fault("http", "missing_input_accepted", "check", "missing_input", "errors.missing_input"),
    _fault("http", "wrong_shape_accepted", "check", "shape", "errors.wrong_shape"),
    _fault("http", "wrong_datatype_accepted", "check", "datatype", "errors.wrong_datatype"),
    _fault(
        "http",
        "wrong_size_accepted",
        "check",
        "size",
        "errors.too_few_elements",
        "errors.binary.too_long",
    ),
    _fault(
        "http",
        "malformed_json_accepted",
        "response",
        _failed(_accept_malformed),
        "errors.malformed_json",
    ),
    _fault("http", "wrong_method_not_found", "check", "method", "errors.wrong_method"),
    _fault(
        "http",
        "zero_dimension_refused",
        "inputs",
        _refuse_zero,
        "infer.empty.json",
        "infer.empty.binary",
    ),
    _fault("http", "parameters_refused", "inputs", _refuse_parameters, "forms.parameters"),
    _fault("http", "outputs_ignored", "inputs", _without_outputs, "forms.outputs"),
    # HTTP: errors.
    _fault(
        "http",
        "error_without_error",
        "response",
        _failed(_renamed_error),
        "errors.unknown_model",
        "errors.unknown_input",
    ),
    _fault(
        "http",
        "error_as_page",
        "response",
        _failed(_page),
        "errors.unknown_model",
        "errors.unknown_input",
    ),
    _fault(
        "http",
        "error_with_200",
        "response",
        _failed(_status(200)),
        "errors.unknown_model",
        "errors.unknown_path",
    ),
    # HTTP: what comes back.
    _fault("http", "id_lost", "response", _on("/infer", _without("id")), "forms.id", "infer.json"),
    _fault(
        "http", "model_name_lost", "response", _on("/infer", _without("model_name")), "infer.json"
    ),
    _fault(
        "http",
        "output_without_datatype",
        "response",
        _of_outputs(lambda each: each.pop("datatype")),
        "infer.json",
    ),
    _fault("http", "bool_as_numbers", "response", _of_outputs(_bits), "infer.bool.json"),
    _fault("http", "integers_as_texts", "response", _of_outputs(_texts), "infer.int32.json"),
    _fault("http", "nan_as_null", "data", _null_for_nan, "infer.fp32.nonfinite.json"),
    _fault("http", "output_renamed", "outputs", _NAMED_OTHERWISE, "infer.json"),
    _fault("http", "top_k_off_by_one", "outputs", _top_k, "forms.classification"),
    _fault(
        "http",
        "int64_through_a_double",
        "outputs",
        _DOUBLE,
        "infer.int64.json",
        "infer.int64.binary",
    ),
    _fault(
        "http", "uint64_as_signed", "outputs", _SIGNED, "infer.uint64.json", "infer.uint64.binary"
    ),
    _fault("http", "fp16_rounded", "outputs", _ROUNDED, "infer.fp16.binary"),
    _fault("http", "texts_cut_at_zeros", "outputs", _TEXT, "infer.bytes.binary.no_text"),
    _fault("http", "length_off", "response", _on("/infer", _length_off), "infer.binary"),
    _fault("http", "binary_size_off", "response", _on("/infer", _size_off), "infer.binary"),
    _fault("http", "binary_never", "inputs", _json_always, "infer.binary", "forms.outputs.binary"),
    # HTTP: what hangs, closes, floods or is no HTTP.
    _fault("http", "hangs", "wire", _wire(_hang)),
    _fault("http", "closes", "wire", _wire(_close)),
    _fault("http", "garbage", "wire", _wire(_garbage)),
    _fault("http", "floods", "wire", _wire(_flood)),
    # gRPC: health and metadata.
    _fault("grpc", "not_live", "message", _message("ServerLive", _set(live=False)), "health.live"),
    _fault(
        "grpc",
        "model_not_ready",
        "message",
        _message("ModelReady", _set(ready=False)),
        "health.model_ready",
    ),
    _fault(
        "grpc",
        "unknown_model_ready",
        "error",
        _succeed("ModelReady", b"\x08\x01"),
        "health.model_ready.unknown",
    ),
    _fault(
        "grpc",
        "metadata_without_inputs",
        "message",
        _message("ModelMetadata", _clear("inputs")),
        "metadata.model.tensors",
    ),
    _fault(
        "grpc",
        "metadata_without_outputs",
        "message",
        _message("ModelMetadata", _clear("outputs")),
        "metadata.model.tensors",
    ),
    _fault(
        "grpc",
        "metadata_of_another_name",
        "message",
        _message("ModelMetadata", _set(name="other")),
        "metadata.model",
    ),
    _fault(
        "grpc",
        "metadata_datatypes",
        "message",
        _message("ModelMetadata", _grpc_datatypes),
        "metadata.model",
    ),
    # gRPC: what a request is checked for.
    _fault(
        "grpc",
        "unknown_model_accepted",
        "check",
        "model",
        "metadata.model.unknown",
        "errors.unknown_model",
    ),
    _fault(
        "grpc",
        "version_ignored",
        "check",
        "version",
        "metadata.model.unknown_version",
        "forms.version.unknown",
    ),
    _fault("grpc", "unknown_output_ignored", "check", "output", "forms.outputs.unknown"),
    _fault("grpc", "wrong_shape_accepted", "check", "shape", "errors.wrong_shape"),
    _fault("grpc", "wrong_datatype_accepted", "check", "datatype", "errors.wrong_datatype"),
    _fault(
        "grpc",
        "wrong_size_accepted",
        "check",
        "size",
        "errors.too_few_elements",
        "errors.too_few_contents",
    ),
    _fault("grpc", "mixed_contents_accepted", "check", "mixed", "errors.raw_and_typed"),
    _fault(
        "grpc",
        "typed_contents_ignored",
        "field",
        lambda _: "bool_contents",
        "infer.contents",
        "infer.uint8.contents",
    ),
    _fault("grpc", "parameters_refused", "inputs", _refuse_parameters, "forms.parameters"),
    _fault(
        "grpc", "sequence_without_id_accepted", "check", "sequence_id", "sequences.start_without_id"
    ),
    # gRPC: errors.
    _fault(
        "grpc",
        "errors_are_unknown",
        "error",
        _code("UNKNOWN"),
        "errors.unknown_model",
        "errors.unknown_input",
    ),
    _fault(
        "grpc", "error_is_an_empty_message", "error", _succeed("ModelInfer"), "errors.unknown_model"
    ),
    # gRPC: what comes back.
    _fault(
        "grpc", "id_lost", "message", _message("ModelInfer", _clear("id")), "forms.id", "infer.raw"
    ),
    _fault(
        "grpc",
        "raw_contents_lost",
        "message",
        _message("ModelInfer", _clear("raw_output_contents")),
        "infer.raw",
    ),
    _fault("grpc", "raw_and_typed", "message", _message("ModelInfer", _typed_too), "infer.raw"),
    _fault("grpc", "outputs_swapped", "outputs", _swapped, "infer.raw"),
    _fault("grpc", "another_shape", "outputs", _ANOTHER_SHAPE, "infer.raw"),
    _fault("grpc", "worst_class_first", "outputs", _worst_first, "forms.classification"),
    _fault(
        "grpc",
        "integers_of_32_bits",
        "outputs",
        _SATURATED,
        "infer.int64.raw",
        "infer.uint64.contents",
    ),
    _fault(
        "grpc", "minus_zero_lost", "outputs", _NO_MINUS, "infer.fp32.raw", "infer.fp64.contents"
    ),
    _fault("grpc", "nan_as_zero", "outputs", _NO_NAN, "infer.fp32.nonfinite.raw"),
    _fault(
        "grpc", "texts_in_capitals", "outputs", _CAPITALS, "infer.bytes.raw", "infer.bytes.contents"
    ),
    _fault("grpc", "bytes_length_of_all", "raw", _four_bytes_more, "infer.bytes.raw"),
    _fault("grpc", "big_endian", "raw", _big_endian, "infer.int32.raw", "infer.fp64.raw"),
    _fault("grpc", "bf16_from_the_lower_half", "raw", _lower_half, "infer.bf16.raw"),
    # gRPC: streams.
    _fault("grpc", "stream_never_ends", "stream", _open, "streams.one", "streams.decoupled"),
    _fault("grpc", "stream_without_a_reply", "stream", _silent, "streams.one", "streams.error"),
    _fault("grpc", "stream_ends_with_an_error", "stream", _error_ends, "streams.error"),
    _fault("grpc", "stream_of_bare_messages", "stream", _bare, "streams.one"),
    # gRPC: what hangs, floods or is no message.
    _fault("grpc", "stream_floods", "stream", _forever),
    _fault("grpc", "hangs", "wire", _grpc_wire(_hang)),
    _fault("grpc", "garbage", "message", _every_time(b"\xff\xff\x1b[31m"), "infer.raw"),
)
