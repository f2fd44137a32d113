"""Writes inference messages as JSON: tensors without their elements, and elements.

Messages repeat the descriptions of tensors, so their text is cached.  `infer_request.py` and
`infer_response.py` assemble messages.

JSON has no NaN and no infinity, and servers differ, so `Nonfinite` chooses.  Triton writes the
words `NaN`, `Infinity` and `-Infinity`, which its clients read.  MLServer and KServe write `null`,
which tritonclient and kserve read as NaN; an infinity would be read as NaN too.  In requests they
read `null` as NaN, and the texts of infinities.

Source: Open Inference Protocol, "Tensor Data"; docs/protocols/open-inference.md,
"3. Tensors as JSON".
"""

import enum
import math
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import orjson
from msgspec import Struct

from gateway.accelerator import accelerated
from gateway.ir.calls import InferResponse
from gateway.ir.context import JsonParameter, Parameters
from gateway.ir.errors import Unsupported
from gateway.ir.tensors.data import ArrayData, JsonItemsData, RawData, raw_of
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Shape, Tensor, as_items, as_numpy, as_raw
from gateway.ir.values.number_lists import CODES
from gateway.ir.work import JSON_BYTE, JSON_NUMBER, charge
from gateway.protocols.oip.datatypes import NOT_IN_JSON
from gateway.protocols.oip.json.binary_tensors import BINARY_SIZE
from gateway.protocols.oip.json.parse import dump
from gateway.wire.json.floats import array_json


class Nonfinite(enum.Enum):
    """What is written for a float that is not finite."""

    REFUSE_ALL = enum.auto()
    """Nothing: NaN and infinities are refused, as in requests to servers."""
    QUOTED = enum.auto()
    """`null` for NaN and texts for infinities, as numpy reads them."""
    REFUSE = "refuse"
    """`null` for NaN; infinities are refused."""
    NULL = "null"
    """`null` for all three."""
    LITERAL = "literal"
    """The words that Triton and Python's json module write."""


_REFUSING: Final = (Nonfinite.REFUSE, Nonfinite.REFUSE_ALL)
# What is written for NaN, and for infinities of either sign.
_WORDS: Final = {
    Nonfinite.LITERAL: (b"NaN", b"Infinity", b"-Infinity"),
    Nonfinite.QUOTED: (b"null", b'"Infinity"', b'"-Infinity"'),
}
_CACHE_ENTRIES: Final = 512
_BYTES, _BOOL = Datatype.BYTES, Datatype.BOOL
# Of integers: fewer are written faster by Python than through an array.
_FEW_BYTES: Final = 512
# Longer texts stay separate: another buffer costs less than a copy.
_COPIED_BYTES: Final = 1 << 16
# Of texts: bytes that are written at once, and characters of one text.
_WHOLE_TEXT: Final = 1 << 20
_TEXT_PIECE: Final = 1 << 16
# Python reads raw elements itself, in either byte order, where it has a code for them.
_INTEGERS: Final = {datatype: code for datatype, code in CODES.items() if datatype.is_integer}


def tensor_prefix(
    kind: str, name: str, datatype: Datatype, shape: Shape, parameters: Parameters
) -> bytes:
    """Return the text of a tensor before its data; the object is not closed.

    Args:
        kind: "input" or "output", whose members have their own order.
        name: The name of the tensor.
        datatype: The datatype of its elements.
        shape: The shape that is sent.
        parameters: All that are sent.
    """
    text = _described(kind, name, datatype, shape)
    return b'%b,"parameters":%b' % (text, dump_parameters(parameters)) if parameters else text


def dump_parameters(parameters: Parameters) -> bytes:
    """Write parameters; lists and objects become JSON again."""
    return orjson.dumps(parameters, _json_value, orjson.OPT_PASSTHROUGH_SUBCLASS)


def _json_value(value: Any) -> orjson.Fragment:
    if not isinstance(value, JsonParameter):
        raise TypeError(value)
    return orjson.Fragment(value.encode())


def described_binary(
    kind: str, tensor: Tensor, datatype: Datatype, shape: Shape, size: int
) -> bytes:
    """Return the object of a tensor with *size* bytes after the JSON."""
    if not tensor.parameters:
        return _described_binary(kind, tensor.name, datatype, shape, size)
    parameters = {**tensor.parameters, BINARY_SIZE: size}
    return tensor_prefix(kind, tensor.name, datatype, shape, parameters) + b"}"


@lru_cache(_CACHE_ENTRIES)  # messages repeat the same few
def _described(kind: str, name: str, datatype: Datatype, shape: Shape) -> bytes:
    if kind == "input":
        return dump({"name": name, "shape": shape, "datatype": datatype.value})[:-1]
    return dump({"name": name, "datatype": datatype.value, "shape": shape})[:-1]


@lru_cache(_CACHE_ENTRIES)
def _described_binary(kind: str, name: str, datatype: Datatype, shape: Shape, size: int) -> bytes:
    return tensor_prefix(kind, name, datatype, shape, {BINARY_SIZE: size}) + b"}"


def put_binary(
    text: list[bytes],
    binary: list[memoryview],
    kind: str,
    tensor: Tensor,
    datatype: Datatype,
    shape: Shape,
) -> None:
    """Append the object of a tensor to *text*, and its bytes to those after the JSON."""
    data = tensor.data
    view = data.view if type(data) is RawData else as_raw(tensor)
    binary.append(view)
    if tensor.parameters:
        text.append(described_binary(kind, tensor, datatype, shape, len(view)))
    else:
        text.append(_described_binary(kind, tensor.name, datatype, shape, len(view)))


BinaryPart = tuple[bytes, int]
BinaryWriter = Callable[[tuple[Tensor, ...]], tuple[bytes, list[memoryview]] | None]


@accelerated
@lru_cache(_CACHE_ENTRIES)
def binary_part(
    kind: str, name: str, datatype: Datatype | None, shape: Shape | None
) -> BinaryPart | None:
    """Return the object of a tensor whose bytes follow the JSON, and their size.

    None for a tensor that needs a check, or has no bytes.
    """
    if not name or datatype is None or shape is None:
        return None
    size = math.prod(shape) * datatype.size_bytes  # 0 for BYTES
    return (_described_binary(kind, name, datatype, shape, size), size) if size else None


@accelerated
def binary_writer(
    part_of: Callable[[str, Datatype | None, Shape | None], BinaryPart | None],
) -> BinaryWriter:
    """Return a function that writes raw tensors: their objects, and the bytes after the JSON.

    It returns None for other tensors, and for none at all.

    Args:
        part_of: Writes the binary part of one tensor.
    """

    def write(tensors: tuple[Tensor, ...], /) -> tuple[bytes, list[memoryview]] | None:
        text, views = [], []
        for tensor in tensors:
            if tensor.parameters:
                return None
            data, part = tensor.data, part_of(tensor.name, tensor.datatype, tensor.shape)
            if part is None or type(data) is not RawData or len(data.view) != part[1]:
                return None
            text.append(part[0])
            views.append(data.view)
        return (b",".join(text), views) if text else None

    return write


class JsonTarget(Struct, frozen=True):
    """The target of elements in JSON and what it accepts; see `elements_text`."""

    kind: str
    hint: str
    can_write_half: bool = False
    nonfinite: Nonfinite = Nonfinite.REFUSE_ALL

    def elements(self, tensor: Tensor) -> bytes:
        """Return the text of a tensor's elements, as `elements_text`."""
        return elements_text(
            self.kind, tensor, self.hint, half=self.can_write_half, nonfinite=self.nonfinite
        )


FewIntegers = tuple[bytes, int, Callable[[bytes | memoryview], bytes], "np.dtype[Any]"]


class JsonTargets:
    """How the outputs of replies are written: as their server itself does.

    Args:
        hint: What an error suggests that the user sets.
        nonfinite: What is written for NaN and infinities, whatever the server does; None for that.
    """

    def __init__(self, hint: str, nonfinite: Nonfinite | None) -> None:
        self._words = JsonTarget("output", hint, nonfinite=nonfinite or Nonfinite.LITERAL)
        self._others = {
            (half, nulls): JsonTarget("output", hint, half, nonfinite or own)
            for half in (False, True)
            for nulls, own in ((False, Nonfinite.REFUSE), (True, Nonfinite.NULL))
        }

    def of(self, reply: InferResponse) -> JsonTarget:
        """Return how the outputs of *reply* are written."""
        if reply.has_nonfinite_words:
            return self._words
        return self._others[reply.has_half_in_json, reply.has_null_infinities]


def append_elements(
    text: list[bytes], target: JsonTarget, tensor: Tensor, datatype: Datatype, shape: Shape
) -> bool:
    """Append the object of a tensor with its elements to *text*; as `elements_text`.

    Returns:
        Whether the text of its elements is long.
    """
    data, kind = tensor.data, target.kind
    if not tensor.parameters:
        few = few_integers(kind, tensor.name, datatype, shape)
        if few is not None:
            opened, size, write, dtype = few
            raw = raw_of(data, dtype)
            if raw is not None and len(raw) == size:
                text += (opened, write(raw), b"}")
                return False
    opened = tensor_prefix(kind, tensor.name, datatype, shape, tensor.parameters)
    elements = target.elements(tensor)
    text += (opened, b',"data":', elements, b"}")
    return len(elements) > _COPIED_BYTES


def gathered(text: Sequence[bytes]) -> list[bytes]:
    """Join a text, except for its long pieces."""
    if sum(map(len, text)) <= _COPIED_BYTES:
        return [b"".join(text)]
    buffers: list[bytes] = []
    short: list[bytes] = []
    for piece in text:
        if len(piece) <= _COPIED_BYTES:
            short.append(piece)
        else:
            buffers += (b"".join(short), piece)
            short.clear()
    return [*buffers, b"".join(short)]


def elements_text(
    kind: str,
    tensor: Tensor,
    hint: str,
    *,
    half: bool = False,
    nonfinite: Nonfinite = Nonfinite.REFUSE_ALL,
) -> bytes:
    """Return the text of a tensor's elements, a flat list.

    Args:
        kind: "input" or "output", for errors.
        tensor: With datatype and shape.
        hint: Another way to send it; ends the error's sentence.
        half: FP16 may be written as numbers.
        nonfinite: What is written for NaN and infinities.

    Raises:
        Unsupported: FP16, BF16, or BYTES that are not UTF-8; an infinity, or NaN; the error has
            the first index.
    """
    datatype = tensor.datatype
    if datatype is _BYTES:
        return _strings_text(kind, tensor, hint)
    flat = _elements(kind, tensor, hint, half=half)
    if datatype is None or not datatype.is_float:
        return _flat_text(flat)
    text = _flat_text(flat)
    # Non-finite values are written as null. To search for them in a short text costs a tenth of
    # the check by numpy; in a long one it is the other way around.
    is_long = len(text) > _COPIED_BYTES
    lost = ~np.isfinite(flat) if is_long or b"null" in text else None
    has_lost = lost is not None and bool(lost.any())
    if has_lost and nonfinite in _REFUSING:
        _refuse_non_finite(kind, tensor.name, flat, hint, nonfinite)
    if lost is not None and has_lost and nonfinite in _WORDS:
        return _with_words(text, flat[lost], *_WORDS[nonfinite])
    return text


def _with_words(
    text: bytes, values: npt.NDArray[Any], nan: bytes, infinity: bytes, negative: bytes
) -> bytes:
    """Return the text of a list with the word of each of *values*, in order, for each `null`."""
    charge(values.size * JSON_NUMBER)
    words = np.where(np.isnan(values), nan, np.where(values > 0, infinity, negative))
    pieces: list[bytes] = [b""] * (2 * values.size + 1)
    pieces[::2] = text.split(b"null")
    pieces[1::2] = words.tolist()
    return b"".join(pieces)


def _flat_text(flat: npt.NDArray[Any]) -> bytes:
    """Return an array of one dimension as JSON."""
    charge(flat.size * JSON_NUMBER)
    return array_json(flat)


@lru_cache(_CACHE_ENTRIES)
def few_integers(
    kind: str, name: str, datatype: Datatype | None, shape: Shape | None
) -> FewIntegers | None:
    """Return the text before elements, their size, a writer of their raw form, and their dtype.

    None for elements that are not integers, or are many.
    """
    if datatype not in _INTEGERS or shape is None:
        return None
    count = math.prod(shape)
    size = count * datatype.size_bytes
    if size > _FEW_BYTES:
        return None
    opened = _described(kind, name, datatype, shape) + b',"data":'
    return opened, size, integer_writer(_INTEGERS[datatype], count), datatype.numpy_dtype


@accelerated
def integer_writer(code: str, count: int) -> Callable[[bytes | memoryview], bytes]:
    """Return a function that writes *count* raw integers as a JSON list.

    It raises struct.error for data of another size.

    Args:
        code: The code of the integers, one of `CODES`.
        count: How many integers there are.
    """
    unpack = struct.Struct(f"<{count}{code}").unpack
    return lambda view: orjson.dumps(unpack(view))


def _elements(kind: str, tensor: Tensor, hint: str, *, half: bool) -> npt.NDArray[Any]:
    datatype = tensor.datatype
    if datatype in NOT_IN_JSON and not (half and datatype is Datatype.FP16):
        raise Unsupported(
            f"{kind} {tensor.name!r} is {datatype.name}, which JSON cannot represent: {hint}"
        )
    data = tensor.data
    if type(data) is RawData and datatype is not None:
        flat = np.frombuffer(data.view, datatype.numpy_dtype)
    else:
        array = data.array if type(data) is ArrayData else as_numpy(tensor)
        flat = np.ascontiguousarray(array).reshape(-1)
    if not flat.dtype.isnative:
        # An array may have either byte order; orjson writes only the machine's own.
        flat = flat.astype(flat.dtype.newbyteorder("="))
    if datatype is _BOOL:
        # Raw bytes other than 0 and 1 are true as well, so numpy must not read them as booleans.
        flat = flat.view(np.uint8) != 0
    if not flat.flags.aligned:
        flat = flat.copy()
    return flat


def _strings_text(kind: str, tensor: Tensor, hint: str) -> bytes:
    """Return the text of BYTES elements; long ones are written in pieces, as by `_flat_text`."""
    data = tensor.data
    if type(data) is JsonItemsData:
        return b"[%b]" % b",".join(data.values)
    items = as_items(tensor)
    charge(len(items))
    size = len(data.view) if type(data) is RawData else tensor.nbytes
    # A character may become an escape of six.
    charge(size * JSON_BYTE, 0)
    texts = _texts(kind, tensor, items, hint)
    if size <= _WHOLE_TEXT:
        return dump(texts)
    longest = max(map(len, texts))
    if longest > _TEXT_PIECE:
        return b"[%b]" % b",".join(map(_long_string, texts))
    count = _WHOLE_TEXT // max(1, longest)
    pieces = [dump(texts[at : at + count])[1:-1] for at in range(0, len(texts), count)]
    return b"[%b]" % b",".join(pieces)


def _long_string(text: str) -> bytes:
    pieces = [
        orjson.dumps(text[at : at + _TEXT_PIECE])[1:-1] for at in range(0, len(text), _TEXT_PIECE)
    ]
    return b'"%b"' % b"".join(pieces)


def _texts(kind: str, tensor: Tensor, items: Sequence[bytes | memoryview], hint: str) -> list[str]:
    texts: list[str] = []
    try:
        for item in items:
            texts.append(str(item, "utf-8"))  # noqa: PERF401  # its length is the error's index
    except UnicodeDecodeError as error:
        raise Unsupported(
            f"{kind} {tensor.name!r} has bytes that are not UTF-8 at index {len(texts)}: "
            f"JSON carries only text, {hint}"
        ) from error
    return texts


def _refuse_non_finite(
    kind: str, name: str, flat: npt.NDArray[Any], hint: str, nonfinite: Nonfinite
) -> None:
    """Raise `Unsupported` for the first value that *nonfinite* refuses, if there is one."""
    lost = np.isinf(flat) if nonfinite is Nonfinite.REFUSE else ~np.isfinite(flat)
    if lost.any():
        index = int(np.argmax(lost))
        if nonfinite is Nonfinite.REFUSE:
            hint += "; the listener's option 'nonfinite' allows it"
        raise Unsupported(
            f"{kind} {name!r} has {flat[index]} at index {index}, which is not JSON: {hint}"
        )
