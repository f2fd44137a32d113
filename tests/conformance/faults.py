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
    await asyncio.Event().wait()


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


def _table(carrier: str, point: str, rows: dict[str, tuple[Any, str]]) -> Iterator[Fault]:
    """Yield the faults of one place in the server, each with its change and the rules that name it."""
    for name, (change, rules) in rows.items():
        yield Fault(f"{carrier}_{name}", carrier, point, change, tuple(rules.split()))


FAULTS = (
    *_table(
        "http",
        "response",
        {
            "live_500": (_on("/health/live", _status(500)), "health.live"),
            "model_not_ready": (_on("/ready", _status(400)), "health.ready health.model_ready"),
            "server_without_name": (_on("/v2", _without("name")), "metadata.server"),
            "metadata_without_inputs": (_of_metadata(_without("inputs")), "metadata.model"),
            "metadata_datatypes": (_of_metadata(_other_datatypes), "metadata.model"),
            "metadata_shape_as_text": (_of_metadata(_text_shapes), "metadata.model"),
            "malformed_json_accepted": (_failed(_accept_malformed), "errors.malformed_json"),
            "error_without_error": (
                _failed(_renamed_error),
                "errors.unknown_model errors.unknown_input",
            ),
            "error_as_page": (_failed(_page), "errors.unknown_model errors.unknown_input"),
            "error_with_200": (_failed(_status(200)), "errors.unknown_model errors.unknown_path"),
            "id_lost": (_on("/infer", _without("id")), "forms.id infer.json"),
            "model_name_lost": (_on("/infer", _without("model_name")), "infer.json"),
            "output_without_datatype": (
                _of_outputs(lambda each: each.pop("datatype")),
                "infer.json",
            ),
            "bool_as_numbers": (_of_outputs(_bits), "infer.bool.json"),
            "integers_as_texts": (_of_outputs(_texts), "infer.int32.json"),
            "length_off": (_on("/infer", _length_off), "infer.binary"),
            "binary_size_off": (_on("/infer", _size_off), "infer.binary"),
        },
    ),
    *_table(
        "http",
        "check",
        {
            "unknown_model_accepted": (
                "model",
                "health.model_ready.unknown metadata.model.unknown errors.unknown_model",
            ),
            "version_ignored": ("version", "metadata.model.unknown_version forms.version.unknown"),
            "unknown_output_ignored": ("output", "forms.outputs.unknown"),
            "missing_input_accepted": ("missing_input", "errors.missing_input"),
            "wrong_shape_accepted": ("shape", "errors.wrong_shape"),
            "wrong_datatype_accepted": ("datatype", "errors.wrong_datatype"),
            "wrong_size_accepted": ("size", "errors.too_few_elements errors.binary.too_long"),
            "wrong_method_not_found": ("method", "errors.wrong_method"),
        },
    ),
    *_table(
        "http",
        "inputs",
        {
            "zero_dimension_refused": (_refuse_zero, "infer.empty.json infer.empty.binary"),
            "parameters_refused": (_refuse_parameters, "forms.parameters"),
            "outputs_ignored": (_without_outputs, "forms.outputs"),
            "binary_never": (_json_always, "infer.binary forms.outputs.binary"),
        },
    ),
    *_table(
        "http",
        "data",
        {
            "nan_as_null": (_null_for_nan, "infer.fp32.nonfinite.json"),
        },
    ),
    *_table(
        "http",
        "outputs",
        {
            "output_renamed": (_NAMED_OTHERWISE, "infer.json"),
            "top_k_off_by_one": (_top_k, "forms.classification"),
            "int64_through_a_double": (_DOUBLE, "infer.int64.json infer.int64.binary"),
            "uint64_as_signed": (_SIGNED, "infer.uint64.json infer.uint64.binary"),
            "fp16_rounded": (_ROUNDED, "infer.fp16.binary"),
            "texts_cut_at_zeros": (_TEXT, "infer.bytes.binary.no_text"),
        },
    ),
    *_table(
        "http",
        "wire",
        {
            "hangs": (_wire(_hang), ""),
            "closes": (_wire(_close), ""),
            "garbage": (_wire(_garbage), ""),
            "floods": (_wire(_flood), ""),
        },
    ),
    *_table(
        "grpc",
        "message",
        {
            "not_live": (_message("ServerLive", _set(live=False)), "health.live"),
            "model_not_ready": (_message("ModelReady", _set(ready=False)), "health.model_ready"),
            "metadata_without_inputs": (
                _message("ModelMetadata", _clear("inputs")),
                "metadata.model.tensors",
            ),
            "metadata_without_outputs": (
                _message("ModelMetadata", _clear("outputs")),
                "metadata.model.tensors",
            ),
            "metadata_of_another_name": (
                _message("ModelMetadata", _set(name="other")),
                "metadata.model",
            ),
            "metadata_datatypes": (_message("ModelMetadata", _grpc_datatypes), "metadata.model"),
            "id_lost": (_message("ModelInfer", _clear("id")), "forms.id infer.raw"),
            "raw_contents_lost": (
                _message("ModelInfer", _clear("raw_output_contents")),
                "infer.raw",
            ),
            "raw_and_typed": (_message("ModelInfer", _typed_too), "infer.raw"),
            "garbage": (_every_time(b"\xff\xff\x1b[31m"), "infer.raw"),
        },
    ),
    *_table(
        "grpc",
        "error",
        {
            "unknown_model_ready": (
                _succeed("ModelReady", b"\x08\x01"),
                "health.model_ready.unknown",
            ),
            "errors_are_unknown": (_code("UNKNOWN"), "errors.unknown_model errors.unknown_input"),
            "error_is_an_empty_message": (_succeed("ModelInfer"), "errors.unknown_model"),
        },
    ),
    *_table(
        "grpc",
        "check",
        {
            "unknown_model_accepted": ("model", "metadata.model.unknown errors.unknown_model"),
            "version_ignored": ("version", "metadata.model.unknown_version forms.version.unknown"),
            "unknown_output_ignored": ("output", "forms.outputs.unknown"),
            "wrong_shape_accepted": ("shape", "errors.wrong_shape"),
            "wrong_datatype_accepted": ("datatype", "errors.wrong_datatype"),
            "wrong_size_accepted": ("size", "errors.too_few_elements errors.too_few_contents"),
            "mixed_contents_accepted": ("mixed", "errors.raw_and_typed"),
            "sequence_without_id_accepted": ("sequence_id", "sequences.start_without_id"),
        },
    ),
    *_table(
        "grpc",
        "field",
        {
            "typed_contents_ignored": (
                lambda _: "bool_contents",
                "infer.contents infer.uint8.contents",
            ),
        },
    ),
    *_table(
        "grpc",
        "inputs",
        {
            "parameters_refused": (_refuse_parameters, "forms.parameters"),
        },
    ),
    *_table(
        "grpc",
        "outputs",
        {
            "outputs_swapped": (_swapped, "infer.raw"),
            "another_shape": (_ANOTHER_SHAPE, "infer.raw"),
            "worst_class_first": (_worst_first, "forms.classification"),
            "integers_of_32_bits": (_SATURATED, "infer.int64.raw infer.uint64.contents"),
            "minus_zero_lost": (_NO_MINUS, "infer.fp32.raw infer.fp64.contents"),
            "nan_as_zero": (_NO_NAN, "infer.fp32.nonfinite.raw"),
            "texts_in_capitals": (_CAPITALS, "infer.bytes.raw infer.bytes.contents"),
        },
    ),
    *_table(
        "grpc",
        "raw",
        {
            "bytes_length_of_all": (_four_bytes_more, "infer.bytes.raw"),
            "big_endian": (_big_endian, "infer.int32.raw infer.fp64.raw"),
            "bf16_from_the_lower_half": (_lower_half, "infer.bf16.raw"),
        },
    ),
    *_table(
        "grpc",
        "stream",
        {
            "stream_never_ends": (_open, "streams.one streams.decoupled"),
            "stream_without_a_reply": (_silent, "streams.one streams.error"),
            "stream_ends_with_an_error": (_error_ends, "streams.error"),
            "stream_of_bare_messages": (_bare, "streams.one"),
            "stream_floods": (_forever, ""),
        },
    ),
    *_table(
        "grpc",
        "wire",
        {
            "hangs": (_grpc_wire(_hang), ""),
        },
    ),
)
