"""The seeded faults: each is one small change of `faulty_server.py` that a rule of the protocol forbids."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
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


def _truncated_wrongly(data: bytes, tensor: Tensor) -> bytes:
    """Take the lower half of an FP32 for a BF16."""
    return bytes(len(data)) if tensor.datatype == "BF16" else data


_NAMED_OTHERWISE = _each(lambda tensor: replace(tensor, name=tensor.name.lower()))
_ANOTHER_SHAPE = _each(lambda tensor: replace(tensor, shape=(1, *tensor.shape)))
_NO_MINUS = _each(_values(lambda values: values + values.dtype.type(0)), "FP32", "FP64")
_NO_NAN = _each(_values(np.nan_to_num), "FP16", "FP32", "FP64")
_DOUBLE = _each(_values(lambda values: values.astype("f8").astype("i8")), "INT64")
_SIGNED = _each(_values(lambda values: np.minimum(values, 2**63 - 1)), "UINT64")
_TEXT = _each(
    _values(lambda values: array([each.rstrip(b"\0") for each in values], "BYTES")), "BYTES"
)
_LOWER = _each(_values(lambda values: array([each.lower() for each in values], "BYTES")), "BYTES")
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


def _with(**members: Any) -> Callable[[Response], None]:
    return lambda response: response.document.update(members)


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


def _fractions(output: dict[str, Any]) -> None:
    if "INT" in output["datatype"] and "data" in output:
        output["data"] = [str(each) for each in output["data"]]


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


def _length_off(response: Response) -> None:
    if response.parts:
        response.headers[LENGTH] = "1"


def _no_length(response: Response) -> None:
    if response.parts:
        response.document["outputs"][0]["parameters"]["binary_data_size"] += 1


def _json_always(call: Inference) -> Inference:
    outputs = tuple(replace(each, binary=False) for each in call.outputs)
    return replace(call, binary=False, outputs=outputs)


def _binary_always(call: Inference) -> Inference:
    return replace(call, binary=True, outputs=())


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
    while True:
        await response.write(b"[" * 65536)


async def _stop_within(request: web.Request) -> web.Response:
    """Announce more than comes."""
    assert request.transport is not None
    request.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{")
    await asyncio.sleep(3600)
    return web.Response()


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


def _errors_without_id(messages: Iterator[Any], _request: Any) -> Iterator[Any]:
    for message in messages:
        if message.error_message:
            message.infer_response.id = ""
        yield message


def _bare(messages: Iterator[Any], _request: Any) -> Iterator[Any]:
    """Send the inner messages, as MLServer does."""
    for message in messages:
        yield message.infer_response


def _one_only(messages: Iterator[Any], _request: Any) -> Iterator[Any]:
    yield next(messages)


def _fault(carrier: str, name: str, point: str, change: Any, *rules: str) -> Fault:
    return Fault(f"{carrier}_{name}", carrier, point, change, rules)


FAULTS = (
    # HTTP: health and metadata.
    _fault("http", "live_500", "response", _on("/health/live", _status(500))),
    _fault("http", "ready_503", "response", _on("/health/ready", _status(503))),
    _fault("http", "model_not_ready", "response", _on("/ready", _status(400))),
    _fault("http", "unknown_model_ready", "check", "model"),
    _fault("http", "server_without_name", "response", _on("/v2", _without("name"))),
    _fault("http", "metadata_without_inputs", "response", _of_metadata(_without("inputs"))),
    _fault("http", "metadata_without_outputs", "response", _of_metadata(_without("outputs"))),
    _fault("http", "metadata_of_another_name", "response", _of_metadata(_with(name="other"))),
    _fault("http", "metadata_datatypes", "response", _of_metadata(_other_datatypes)),
    _fault("http", "metadata_shape_as_text", "response", _of_metadata(_text_shapes)),
    # HTTP: what a request is checked for.
    _fault("http", "version_ignored", "check", "version"),
    _fault("http", "unknown_output_ignored", "check", "output"),
    _fault("http", "missing_input_accepted", "check", "missing_input"),
    _fault("http", "wrong_shape_accepted", "check", "shape"),
    _fault("http", "wrong_datatype_accepted", "check", "datatype"),
    _fault("http", "wrong_size_accepted", "check", "size"),
    _fault("http", "malformed_json_accepted", "check", "json"),
    _fault("http", "zero_dimension_refused", "inputs", _refuse_zero),
    _fault("http", "parameters_refused", "inputs", _refuse_parameters),
    _fault("http", "outputs_ignored", "inputs", _without_outputs),
    # HTTP: errors.
    _fault("http", "error_without_error", "response", _failed(_renamed_error)),
    _fault("http", "error_as_page", "response", _failed(_page)),
    _fault("http", "error_with_200", "response", _failed(_status(200))),
    # HTTP: what comes back.
    _fault("http", "id_lost", "response", _on("/infer", _without("id"))),
    _fault("http", "id_changed", "response", _on("/infer", _with(id="1"))),
    _fault("http", "model_name_lost", "response", _on("/infer", _without("model_name"))),
    _fault("http", "outputs_lost", "response", _on("/infer", _without("outputs"))),
    _fault(
        "http",
        "output_without_datatype",
        "response",
        _of_outputs(lambda each: each.pop("datatype")),
    ),
    _fault("http", "output_without_shape", "response", _of_outputs(lambda each: each.pop("shape"))),
    _fault("http", "bool_as_numbers", "response", _of_outputs(_bits)),
    _fault("http", "integers_as_texts", "response", _of_outputs(_fractions)),
    _fault("http", "output_renamed", "outputs", _NAMED_OTHERWISE),
    _fault("http", "outputs_swapped", "outputs", _swapped),
    _fault("http", "another_shape", "outputs", _ANOTHER_SHAPE),
    _fault("http", "top_k_off_by_one", "outputs", _top_k),
    _fault("http", "int64_through_a_double", "outputs", _DOUBLE),
    _fault("http", "uint64_as_signed", "outputs", _SIGNED),
    _fault("http", "fp16_rounded", "outputs", _ROUNDED),
    _fault("http", "minus_zero_lost", "outputs", _NO_MINUS),
    _fault("http", "texts_cut_at_zeros", "outputs", _TEXT),
    _fault("http", "length_off", "response", _on("/infer", _length_off)),
    _fault("http", "binary_size_off", "response", _on("/infer", _no_length)),
    _fault("http", "binary_never", "inputs", _json_always),
    _fault("http", "binary_always", "inputs", _binary_always),
    _fault("http", "bytes_length_of_all", "raw", _four_bytes_more),
    _fault("http", "big_endian", "raw", _big_endian),
    # HTTP: what hangs, closes, floods or is no HTTP.
    _fault("http", "hangs", "wire", _wire(_hang)),
    _fault("http", "closes", "wire", _wire(_close)),
    _fault("http", "garbage", "wire", _wire(_garbage)),
    _fault("http", "floods", "wire", _wire(_flood)),
    _fault("http", "stops_within_a_body", "wire", _wire(_stop_within)),
    # gRPC: health and metadata.
    _fault("grpc", "not_live", "message", _message("ServerLive", _set(live=False))),
    _fault("grpc", "not_ready", "message", _message("ServerReady", _set(ready=False))),
    _fault("grpc", "model_not_ready", "message", _message("ModelReady", _set(ready=False))),
    _fault("grpc", "unknown_model_ready", "error", _succeed("ModelReady", b"\x08\x01")),
    _fault("grpc", "server_without_name", "message", _message("ServerMetadata", _clear("name"))),
    _fault(
        "grpc", "metadata_without_inputs", "message", _message("ModelMetadata", _clear("inputs"))
    ),
    _fault(
        "grpc", "metadata_without_outputs", "message", _message("ModelMetadata", _clear("outputs"))
    ),
    _fault(
        "grpc", "metadata_of_another_name", "message", _message("ModelMetadata", _set(name="other"))
    ),
    _fault("grpc", "metadata_datatypes", "message", _message("ModelMetadata", _grpc_datatypes)),
    # gRPC: what a request is checked for.
    _fault("grpc", "unknown_model_accepted", "check", "model"),
    _fault("grpc", "version_ignored", "check", "version"),
    _fault("grpc", "unknown_output_ignored", "check", "output"),
    _fault("grpc", "missing_input_accepted", "check", "missing_input"),
    _fault("grpc", "wrong_shape_accepted", "check", "shape"),
    _fault("grpc", "wrong_datatype_accepted", "check", "datatype"),
    _fault("grpc", "wrong_size_accepted", "check", "size"),
    _fault("grpc", "mixed_contents_accepted", "check", "mixed"),
    _fault("grpc", "typed_contents_ignored", "field", lambda _: "bool_contents"),
    _fault("grpc", "outputs_ignored", "inputs", _without_outputs),
    _fault("grpc", "zero_dimension_refused", "inputs", _refuse_zero),
    _fault("grpc", "parameters_refused", "inputs", _refuse_parameters),
    _fault("grpc", "no_sequence_check", "check", "sequence_start"),
    # gRPC: errors.
    _fault("grpc", "errors_are_unknown", "error", _code("UNKNOWN")),
    _fault("grpc", "error_is_an_empty_message", "error", _succeed("ModelInfer")),
    # gRPC: what comes back.
    _fault("grpc", "id_lost", "message", _message("ModelInfer", _clear("id"))),
    _fault("grpc", "model_name_lost", "message", _message("ModelInfer", _clear("model_name"))),
    _fault("grpc", "outputs_lost", "message", _message("ModelInfer", _clear("outputs"))),
    _fault(
        "grpc",
        "raw_contents_lost",
        "message",
        _message("ModelInfer", _clear("raw_output_contents")),
    ),
    _fault("grpc", "raw_and_typed", "message", _message("ModelInfer", _typed_too)),
    _fault("grpc", "output_renamed", "outputs", _NAMED_OTHERWISE),
    _fault("grpc", "outputs_swapped", "outputs", _swapped),
    _fault("grpc", "another_shape", "outputs", _ANOTHER_SHAPE),
    _fault("grpc", "top_k_off_by_one", "outputs", _top_k),
    _fault("grpc", "worst_class_first", "outputs", _worst_first),
    _fault("grpc", "int64_through_a_double", "outputs", _DOUBLE),
    _fault("grpc", "integers_of_32_bits", "outputs", _SATURATED),
    _fault("grpc", "fp16_rounded", "outputs", _ROUNDED),
    _fault("grpc", "minus_zero_lost", "outputs", _NO_MINUS),
    _fault("grpc", "nan_as_zero", "outputs", _NO_NAN),
    _fault("grpc", "texts_in_lower_case", "outputs", _LOWER),
    _fault("grpc", "bytes_length_of_all", "raw", _four_bytes_more),
    _fault("grpc", "big_endian", "raw", _big_endian),
    _fault("grpc", "bf16_from_the_lower_half", "raw", _truncated_wrongly),
    # gRPC: streams.
    _fault("grpc", "stream_never_ends", "stream", _open),
    _fault("grpc", "stream_floods", "stream", _forever),
    _fault("grpc", "stream_ends_with_an_error", "stream", _error_ends),
    _fault("grpc", "stream_error_without_id", "stream", _errors_without_id),
    _fault("grpc", "stream_of_bare_messages", "stream", _bare),
    _fault("grpc", "stream_loses_responses", "stream", _one_only),
    # gRPC: what hangs or is no message.
    _fault("grpc", "hangs", "wire", _grpc_wire(_hang)),
    _fault("grpc", "garbage", "message", _every_time(b"\xff\xff\x1b[31m")),
)
