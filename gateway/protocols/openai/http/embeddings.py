"""Requests and responses of `/v1/embeddings`.

Source: docs/protocols/openai.md, "3. Embeddings".
"""

from binascii import b2a_base64
from collections.abc import Mapping
from itertools import chain
from typing import Any, Final

import numpy as np
import orjson

from gateway.accelerator import accelerated
from gateway.ir.calls import InferRequest, InferResponse
from gateway.ir.context import ModelRef
from gateway.ir.errors import InvalidOutput, Unsupported
from gateway.ir.limits import MessageLimits
from gateway.ir.tensors.datatypes import Datatype, fp32_of_bf16
from gateway.ir.tensors.tensor import Tensor, array_tensor, as_numpy, items_tensor
from gateway.ir.text_tasks import PROMPT_TOKENS, Embed
from gateway.ir.work import BYTE, JSON_NUMBER, charge
from gateway.protocols.openai.http.document import (
    Document,
    check_items,
    optional_integer,
    optional_text,
    required,
    shown,
    texts,
    wrong,
)
from gateway.protocols.openai.http.form import ReplyForm
from gateway.protocols.openai.paths import PathKind
from gateway.wire.http import Buffer

EMBEDDINGS_MEMBERS: Final = frozenset(
    {"model", "input", "encoding_format", "dimensions", "user", "input_type"}
)
BASE64, FLOAT = "base64", "float"
_PREFIX_OF: Final[Mapping[str, str]] = {
    "query": "query",
    "search_query": "query",
    "passage": "passage",
    "document": "passage",
    "search_document": "passage",
}
_EXPECTED: Final = "a text, a list of texts, a list of token ids or a list of such lists"
_NUMBERS: Final = frozenset({Datatype.FP16, Datatype.BF16, Datatype.FP32, Datatype.FP64})
_WHOLE: Final = frozenset({Datatype.INT8, Datatype.UINT8})
_ROWS: Final = 2
_ENTRY: Final = b'{"object":"embedding","index":%d,"embedding":%b}'


def read_embeddings(
    document: Document, kind: PathKind, limits: MessageLimits
) -> tuple[tuple[Tensor, ...], Embed, ReplyForm]:
    """Return the inputs, the task, and the form of the response.

    Raises:
        InvalidMember: A member is wrong.
    """
    inputs = _inputs(required(document, "input", _EXPECTED), limits)
    encoding = document.get("encoding_format", "")
    if encoding not in ("", FLOAT, BASE64):
        raise wrong("encoding_format", f"is {shown(encoding)}; expected {FLOAT} or {BASE64}")
    optional_text(document, "user")
    input_type = optional_text(document, "input_type")
    if input_type and input_type not in _PREFIX_OF:
        names = ", ".join(_PREFIX_OF)
        raise wrong("input_type", f"is {shown(input_type)}; expected one of {names}")
    task = Embed(
        dimensions=optional_integer(document, "dimensions"),
        input_type=_PREFIX_OF.get(input_type, ""),
        encoding=encoding,
    )
    return inputs, task, ReplyForm(kind=kind, is_base64=encoding == BASE64)


def encode_embeddings(
    call: InferRequest, reply: InferResponse, form: ReplyForm
) -> tuple[Buffer, ...]:
    """Return the body of a response with the rows of the only output.

    Raises:
        InvalidOutput: A value cannot be written in the form that the request asks for.
        Unsupported: The reply is no embedding.
    """
    rows = _rows(call, reply)
    entries = _base64_rows(rows, call.model) if form.is_base64 else _json_rows(rows, call.model)
    name = "" if call.model is None else call.model.name
    end = b'],"model":%b,"usage":%b}' % (orjson.dumps(name), orjson.dumps(usage_of(reply)))
    return b'{"object":"list","data":[', entries, end


@accelerated
def base64_entries(rows: bytes | memoryview, count: int) -> bytes:
    """Return the entries of a response with base64.

    Args:
        rows: All rows, one after the other.
        count: Their number.
    """
    width = len(rows) // count if count else 0
    return b",".join(
        [
            _ENTRY % (index, b'"%b"' % b2a_base64(rows[at : at + width], newline=False))
            for index, at in enumerate(range(0, width * count, width))
        ]
        if width
        else [_ENTRY % (index, b'""') for index in range(count)]
    )


def usage_of(reply: InferResponse) -> dict[str, int]:
    """Return the numbers of tokens of a request; 0 where they are not known."""
    tokens = reply.parameters.get(PROMPT_TOKENS, 0)
    found = tokens if type(tokens) is int else 0
    return {"prompt_tokens": found, "total_tokens": found}


def number_texts(array: Any) -> bytes:
    """Return numbers as a JSON list: the shortest texts with the same bits."""
    return orjson.dumps(np.ascontiguousarray(array), option=orjson.OPT_SERIALIZE_NUMPY)


def values_of(tensor: Tensor) -> Any:
    """Return numbers as an array: FP16 and BF16 as FP32, which is exact.

    Raises:
        Unsupported: They are of another datatype.
    """
    if tensor.datatype not in _NUMBERS and tensor.datatype not in _WHOLE:
        name = "no datatype" if tensor.datatype is None else tensor.datatype.name
        raise Unsupported(f"output {tensor.name!r} has {name}; expected floating-point numbers")
    array = as_numpy(tensor)
    if tensor.datatype is Datatype.BF16:
        return fp32_of_bf16(array)
    return array.astype(np.float32) if tensor.datatype is Datatype.FP16 else array


def _inputs(value: Any, limits: MessageLimits) -> tuple[Tensor, ...]:
    if type(value) is str:
        value = [value]
    if type(value) is not list:
        raise wrong("input", f"is {shown(value)}; expected {_EXPECTED}")
    if not value:
        raise wrong("input", f"is empty; expected {_EXPECTED}")
    first = type(value[0])
    if first is int:
        return _ids([value], limits)
    if first is list:
        check_items(value, "input", limits)
        if set(map(type, value)) != {list}:
            raise wrong("input", f"mixes kinds; expected {_EXPECTED}")
        return _ids(value, limits)
    items = texts(value, "input", limits)
    return (items_tensor("", (len(items),), items),)


def _ids(rows: list[list[Any]], limits: MessageLimits) -> tuple[Tensor, ...]:
    sizes = list(map(len, rows))
    total = sum(sizes)
    if 0 in sizes:
        raise wrong("input", f"has no token ids at index {sizes.index(0)}")
    if total > limits.bytes_elements:
        raise wrong(
            "input",
            f"has {total} token ids; expected at most {limits.bytes_elements} (bytes_elements)",
        )
    charge(total / 4)
    flat = list(chain.from_iterable(rows))
    if set(map(type, flat)) != {int}:
        raise wrong("input", "has something else than whole numbers among token ids")
    try:
        ids = np.array(flat, np.int64)
    except OverflowError:
        raise wrong("input", "has a token id of more than 64 bits") from None
    return array_tensor("", ids), array_tensor("", np.array(sizes, np.int64))


def _rows(call: InferRequest, reply: InferResponse) -> Any:
    if len(reply.outputs) != 1:
        raise Unsupported(
            f"model {str(call.model)!r} replied with {len(reply.outputs)} outputs; expected one",
            model=call.model,
        )
    array = values_of(reply.outputs[0])
    return array if array.ndim == _ROWS else array.reshape(len(array), -1)


def _base64_rows(rows: Any, model: ModelRef | None) -> bytes:
    charge(2 * len(rows) + rows.size * 4 * BYTE)
    floats = rows
    if rows.dtype != np.float32:
        with np.errstate(over="ignore"):
            floats = rows.astype(np.float32)
        if not np.array_equal(np.isfinite(floats), np.isfinite(rows)):
            raise InvalidOutput(
                "the model returned a value beyond FP32, which base64 cannot carry; "
                "encoding_format float can",
                model=model,
            )
    raw = np.ascontiguousarray(floats, "<f4").reshape(-1).view(np.uint8)
    return base64_entries(raw.data, len(rows))


def _json_rows(rows: Any, model: ModelRef | None) -> bytes:
    charge(2 * len(rows) + rows.size * JSON_NUMBER)
    if rows.dtype.kind == "f" and not np.isfinite(rows).all():
        raise InvalidOutput(
            "the model returned NaN or Infinity, which JSON cannot carry; encoding_format base64 "
            "can",
            model=model,
        )
    return b",".join([_ENTRY % (index, number_texts(row)) for index, row in enumerate(rows)])
