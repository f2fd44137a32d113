"""Writes headers in protobuf's text format, on one line.

Strings are escaped to ASCII.  Zero values are left out, as the library does.

Source: docs/protocols/tensorrt-v1.md, "5. Inference response over HTTP" and "6. Text format".
"""

import numpy as np

from gateway.schema import tensorrt_v1_pb2 as pb

# The client's HTTP library fails on lines of 100 KiB, and proxies at 8 KiB: longer lines lack the
# classes, which the trailer contains too.
LINE_BYTES = 8000

_ESCAPES = [chr(code) if 0x20 <= code < 0x7F else f"\\{code:03o}" for code in range(256)]  # noqa: PLR2004
for _code, _escape in (
    (9, "\\t"),
    (10, "\\n"),
    (13, "\\r"),
    (34, '\\"'),
    (39, "\\'"),
    (92, "\\\\"),
):
    _ESCAPES[_code] = _escape
_CODES = {
    code.number: code.name for code in pb.DESCRIPTOR.enum_types_by_name["RequestStatusCode"].values
}


def quoted(text: str) -> str:
    """Return *text* as a string of the text format, ASCII only."""
    if text.isalnum() and text.isascii():
        return f'"{text}"'
    return '"' + "".join([_ESCAPES[byte] for byte in text.encode("utf-8", "replace")]) + '"'


def status_line(code: int, text: str, server_id: str, request_id: int) -> str:
    """Write a RequestStatus."""
    message = f" msg: {quoted(text)}" if text else ""
    return f"code: {_CODES[code]}{message} server_id: {quoted(server_id)} request_id: {request_id}"


def request_line(header: pb.InferRequestHeader) -> str:
    """Write an InferRequestHeader."""
    words = []
    if header.batch_size:
        words.append(f"batch_size: {header.batch_size}")
    for entry in header.input:
        words.append(f"input {{ name: {quoted(entry.name)}")
        words += [f"dims: {dim}" for dim in entry.dims]
        if entry.batch_byte_size:
            words.append(f"batch_byte_size: {entry.batch_byte_size}")
        words += _shared(entry)
        words.append("}")
    for output in header.output:
        words.append(f"output {{ name: {quoted(output.name)}")
        if output.HasField("cls"):
            words.append(f"cls {{ count: {output.cls.count} }}")
        words += _shared(output)
        words.append("}")
    for name in ("correlation_id", "id", "flags", "priority", "timeout_microseconds"):
        value = getattr(header, name)
        if value:
            words.append(f"{name}: {value}")
    return " ".join(words)


def _shared(entry: pb.InferRequestHeader.Input | pb.InferRequestHeader.Output) -> list[str]:
    if not entry.HasField("shared_memory"):
        return []
    memory = entry.shared_memory
    words = [f"shared_memory {{ name: {quoted(memory.name)}"]
    if memory.offset:
        words.append(f"offset: {memory.offset}")
    if memory.byte_size:
        words.append(f"byte_size: {memory.byte_size}")
    words.append("}")
    return words


def response_line(header: pb.InferResponseHeader) -> str:
    """Write an InferResponseHeader, without its classes where it would be too long."""
    line = _response(header, classes=True)
    return line if len(line) <= LINE_BYTES else _response(header, classes=False)


def _response(header: pb.InferResponseHeader, *, classes: bool) -> str:
    words = []
    if header.model_name:
        words.append(f"model_name: {quoted(header.model_name)}")
    if header.model_version:
        words.append(f"model_version: {header.model_version}")
    if header.batch_size:
        words.append(f"batch_size: {header.batch_size}")
    for output in header.output:
        words.append(f"output {{ name: {quoted(output.name)}")
        if output.HasField("raw"):
            words.append("raw {")
            words += [f"dims: {dim}" for dim in output.raw.dims]
            if output.raw.batch_byte_size:
                words.append(f"batch_byte_size: {output.raw.batch_byte_size}")
            words.append("}")
        if classes:
            for item in output.batch_classes:
                words += ["batch_classes {", *map(_class, item.cls), "}"]
        words.append("}")
    if header.id:
        words.append(f"id: {header.id}")
    return " ".join(words)


def _class(found: pb.InferResponseHeader.Output.Class) -> str:
    words = ["cls {"]
    if found.idx:
        words.append(f"idx: {found.idx}")
    if found.value or str(found.value) == "-0.0":
        words.append(f"value: {float_text(found.value)}")
    if found.label:
        words.append(f"label: {quoted(found.label)}")
    words.append("}")
    return " ".join(words)


def float_text(value: float) -> str:
    """Write an FP32 number with the fewest digits that identify it."""
    with np.errstate(over="ignore"):
        return str(np.float32(value)).removesuffix(".0")
