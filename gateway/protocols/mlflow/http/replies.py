"""Writes answers: `predictions` as a list or an object of columns, CSV, and lines.

Source: docs/protocols/mlflow.md, "5. Responses".
"""

from collections.abc import Sequence
from typing import Final

from gateway.ir.calls import InferResponse
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Tensor, as_items, as_numpy
from gateway.protocols.mlflow.errors import OK
from gateway.protocols.mlflow.http.form import ScoringForm
from gateway.wire.http import Buffer, Headers, HttpResponse
from gateway.wire.json.errors import JSON
from gateway.wire.rows.write import RowStyle, columns_json, row_texts, value_json

_CSV: Final = ("Content-Type", "text/csv")
_LINES: Final = ("Content-Type", "application/jsonlines")
_PLAIN: Final = Headers((JSON,))
_MATRIX_RANK: Final = 2


def encode_inference(reply: InferResponse, form: ScoringForm, style: RowStyle) -> HttpResponse:
    """Write the answer to an inference.

    Args:
        reply: The reply, complete.
        form: What the caller asked for.
        style: How elements are written.

    Raises:
        InvalidOutput: An element cannot be written.
    """
    extra = form.returned
    if form.is_csv and _is_matrix(reply.outputs):
        return HttpResponse(OK, Headers((_CSV, *extra)), (_csv(reply.outputs[0], style),))
    if form.is_lines:
        return HttpResponse(OK, Headers((_LINES, *extra)), (_lines(reply, style),))
    headers = Headers((JSON, *extra)) if extra else _PLAIN
    return HttpResponse(OK, headers, (_predictions(reply, style),), is_compressible=True)


def encode_line(
    reply: InferResponse, style: RowStyle, extra: tuple[tuple[str, str], ...]
) -> HttpResponse:
    """Write one reply of a stream as a line.

    Raises:
        InvalidOutput: An element cannot be written.
    """
    return HttpResponse(OK, Headers((_LINES, *extra)), (_predictions(reply, style) + b"\n",))


def _predictions(reply: InferResponse, style: RowStyle) -> bytes:
    outputs = reply.outputs
    text = value_json(outputs[0], style) if len(outputs) == 1 else columns_json(outputs, style)
    return b'{"predictions": %b}' % text


def _lines(reply: InferResponse, style: RowStyle) -> Buffer:
    """Return one line for each row."""
    found = bytearray()
    for row in row_texts(reply.outputs, style):
        found += b'{"predictions": %b}\n' % row
    return found


def _is_matrix(outputs: Sequence[Tensor]) -> bool:
    return len(outputs) == 1 and 1 <= len(outputs[0].shape or ()) <= _MATRIX_RANK


def _csv(tensor: Tensor, style: RowStyle) -> bytes:
    """Return one line for each row."""
    shape = tensor.shape or ()
    width = shape[1] if len(shape) == _MATRIX_RANK else 1
    if tensor.datatype is Datatype.BYTES:
        items = [_quoted(str(item, "utf-8", "replace")) for item in as_items(tensor)]
    else:
        flat = Tensor(tensor.name, tensor.datatype, (as_numpy(tensor).size,), tensor.data)
        items = value_json(flat, style)[1:-1].decode().split(",") if flat.shape != (0,) else []
    lines = [",".join(items[at : at + width]) for at in range(0, len(items), max(width, 1))]
    return "".join([f"{line}\n" for line in lines]).encode()


def _quoted(text: str) -> str:
    needs_quotes = any(each in text for each in ',"\r\n')
    return '"' + text.replace('"', '""') + '"' if needs_quotes else text
