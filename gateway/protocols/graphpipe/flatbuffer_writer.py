"""Writes GraphPipe messages forwards around the tensor data, which is neither copied nor joined.

Layout: root word, vtables, root table, offsets, tables, shapes, and last the data of each tensor,
aligned to 64 bytes from the start of the message.  Small parts share one buffer; tensor data stays
in its own buffers.

Source: docs/protocols/graphpipe.md, "2. Schema", "3. Encoding"; FlatBuffers internals, "Encoding".
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from struct import Struct, pack
from typing import Final, NamedTuple

import numpy as np

from gateway.ir.errors import TooLarge
from gateway.ir.tensors.tensor import Shape
from gateway.wire.http import Buffer

MAX_MESSAGE_BYTES: Final = (1 << 31) - 1
"""Table offsets are signed 32-bit numbers."""

_WORD: Final = Struct("<I")
_ALIGN: Final = 64
_PADS: Final = (b"\0\0\0\0", b"\0\0\0", b"\0\0", b"\0")  # at least one NUL, up to 4 bytes
_ZEROS: Final = bytes(_ALIGN)
_TABLE_BYTES: Final = 16
# Sizes of the caches of response headers and request names, and the most tensors in an entry.
_CACHE_ENTRIES: Final = 512
_FEW_TENSORS: Final = 8
_SHAPE_FORMS: Final = tuple(Struct(f"<I{rank}q4x") for rank in range(33))

# Vtables: own size, size of the table, then the position of each field in it (0: absent).
_TENSOR_VTABLE: Final = pack("<5H", 10, _TABLE_BYTES, 4, 8, 12)
_STRINGS_VTABLE: Final = pack("<6H", 12, _TABLE_BYTES, 4, 8, 0, 12)
_BOTH: Final = _TENSOR_VTABLE + _STRINGS_VTABLE

# Position 4: the tensors' vtables, 22 bytes; 26: the root's; then its table.
_TENSOR_VTABLE_AT: Final = 4
_STRINGS_VTABLE_AT: Final = 14
_ANSWER: Final = (
    pack("<I", 36)
    + _BOTH
    + pack("<4H", 8, 12, 4, 8)
    + b"\0\0"
    + pack("<iII", 36 - 26, 0, 0)  # at 36: vtable, output_tensors, errors
)
_ANSWER_TENSORS, _ANSWER_ERRORS = 40, 44
_REQUEST: Final = (
    pack("<I", 48)
    + _BOTH
    + pack("<6H", 12, 20, 4, 8, 12, 16)  # at 26: InferRequest
    + pack("<4H", 8, 12, 8, 4)  # at 38: Request
    + b"\0\0"
    + pack("<iIB3x", 48 - 38, 60 - 52, 1)  # at 48: vtable, req, req_type
    + pack("<iIIII", 60 - 26, 0, 0, 0, 0)  # at 60: vtable, config, names, tensors, outputs
)
_REQUEST_CONFIG, _REQUEST_INPUTS, _REQUEST_TENSORS, _REQUEST_OUTPUTS = 64, 68, 72, 76

Form = tuple[int, Shape, int, bool]
"""A tensor's number, shape, bytes of data or strings, and whether it is numeric."""

METADATA_REQUEST: Final = (
    pack("<I", 16)
    + pack("<4H", 8, 12, 8, 4)
    + pack("<2H", 4, 4)
    + pack("<iIB3x", 16 - 4, 28 - 20, 2)
    + pack("<i", 28 - 12)
)
"""The only metadata request."""


class WireTensor(NamedTuple):
    """A tensor in its wire form.

    Attributes:
        number: GraphPipe's number of its type.
        data: Little-endian elements; None for String.
        items: The elements of String.
    """

    number: int
    shape: Shape
    data: memoryview | None
    items: Sequence[bytes | memoryview] = ()


def infer_request(
    config: bytes,
    input_names: Sequence[str],
    tensors: Sequence[WireTensor],
    output_names: Sequence[str],
) -> list[Buffer]:
    """Return an InferRequest as buffers; all fields are present, empty ones too.

    Raises:
        TooLarge: The message would have 2 GiB or more.
    """
    head = bytearray(_REQUEST)
    add_string(head, _REQUEST_CONFIG, config)
    add_names(head, _REQUEST_INPUTS, input_names)
    add_names(head, _REQUEST_OUTPUTS, output_names)
    return _add_tensors(head, _REQUEST_TENSORS, tensors)


def infer_response(tensors: Sequence[WireTensor]) -> list[Buffer]:
    """Return an InferResponse with outputs as buffers; its errors are present and empty.

    Raises:
        TooLarge: The message would have 2 GiB or more.
    """
    blocks: list[Buffer] = []
    forms: list[Form] = []
    for number, shape, data, _ in tensors:
        if data is not None:
            blocks.append(data)
            forms.append((number, shape, data.nbytes, True))
    if len(blocks) == len(tensors) and 0 < len(tensors) <= _FEW_TENSORS:
        # A model's responses repeat the same few forms.
        return _interleaved(_answer_head(tuple(forms)), blocks)
    head = bytearray(_ANSWER)
    point(head, _ANSWER_ERRORS)
    head += _WORD.pack(0)
    return _add_tensors(head, _ANSWER_TENSORS, tensors)


def error_response(number: int, text: str) -> bytes:
    """Return an InferResponse with one error; its outputs are present and empty."""
    head = bytearray(_ANSWER)
    point(head, _ANSWER_TENSORS)
    head += _WORD.pack(0)
    point(head, _ANSWER_ERRORS)
    head += pack("<II", 1, 12)  # at 52: one offset, past the vtable
    head += pack("<4H", 8, 16, 8, 4)  # at 60
    head += b"\0\0\0\0"
    head[56:60] = _WORD.pack(72 - 56)
    head += pack("<iIq", 72 - 60, 0, number)  # at 72: vtable, message, code
    add_string(head, 76, text.encode())
    return bytes(head)


def point(head: bytearray, field: int) -> None:
    """Set the offset at *field* to the end of *head*, which is aligned to 4 first."""
    head += _ZEROS[: -len(head) % 4]
    _WORD.pack_into(head, field, len(head) - field)


def add_string(head: bytearray, field: int, data: bytes) -> None:
    """Append a string for the offset at *field*."""
    point(head, field)
    head += _WORD.pack(len(data))
    head += data
    head += _PADS[len(data) & 3]


def add_names(head: bytearray, field: int, names: Sequence[str]) -> None:
    """Append a vector of strings for the offset at *field*."""
    point(head, field)
    if not names:
        head += _WORD.pack(0)
    elif len(names) <= _FEW_TENSORS:
        head += _few_names(tuple(names))
    else:
        head += _names(names)


def _names(names: Sequence[str]) -> bytes:
    return string_vector([name.encode() for name in names])


# A model's requests repeat the names of the same few tensors.
_few_names: Final = lru_cache(maxsize=_CACHE_ENTRIES)(_names)


def add_shape(head: bytearray, field: int, shape: Shape) -> None:
    """Append a shape for the offset at *field*; its elements are aligned to 8."""
    head += _ZEROS[: (4 - len(head)) % 8]
    point(head, field)
    head += pack(f"<I{len(shape)}q", len(shape), *shape)


def string_vector(items: Sequence[bytes | memoryview]) -> bytes:
    """Return a vector of strings with its strings, each with one NUL or more; copies them.

    Raises:
        TooLarge: It would have 2 GiB or more.
    """
    count = len(items)
    lengths = [len(item) for item in items]
    room = np.array(lengths, dtype=np.int64)
    room = (room + 8) & ~3
    ends = np.cumsum(room)
    total = 4 + 4 * count + (int(ends[-1]) if count else 0)
    if total > MAX_MESSAGE_BYTES:
        raise _too_large(total)
    # From an entry of the vector to its string: the rest of the vector and the strings before.
    offsets = 4 * (count - np.arange(count, dtype=np.int64)) + ends - room
    words = map(_WORD.pack, lengths)
    pads = [_PADS[length & 3] for length in lengths]
    strings = chain.from_iterable(zip(words, items, pads, strict=True))
    return b"".join([_WORD.pack(count), offsets.astype("<u4").tobytes(), *strings])


def _add_tensors(head: bytearray, field: int, tensors: Sequence[WireTensor]) -> list[Buffer]:
    """Append the vector of tensors for *field*; return *head* and all data, in order."""
    blocks = [string_vector(each.items) if each.data is None else each.data for each in tensors]
    forms = [
        (each.number, each.shape, memoryview(block).nbytes, each.data is not None)
        for each, block in zip(tensors, blocks, strict=True)
    ]
    if not tensors:
        point(head, field)
        head += _WORD.pack(0)
        return [head]
    return _interleaved(_lay_out(head, field, forms), blocks)


def _interleaved(smalls: Sequence[Buffer], blocks: Sequence[Buffer]) -> list[Buffer]:
    """Return the bytes before each block, and the block, as buffers that are not empty."""
    buffers: list[Buffer] = []
    for small, block in zip(smalls, blocks, strict=True):
        if small:
            buffers.append(small)
        if block:
            buffers.append(block)
    return buffers


@lru_cache(maxsize=_CACHE_ENTRIES)
def _answer_head(forms: tuple[Form, ...]) -> tuple[bytes, ...]:
    """Return the bytes before each tensor's data in a response; they depend on *forms* alone."""
    head = bytearray(_ANSWER)
    point(head, _ANSWER_ERRORS)
    head += _WORD.pack(0)
    return tuple(map(bytes, _lay_out(head, _ANSWER_TENSORS, forms)))


def _lay_out(head: bytearray, field: int, forms: Sequence[Form]) -> list[bytearray]:
    """Append the vector of tensors; return the bytes before the data of each, *head* first."""
    point(head, field)
    count = len(forms)
    first_table = len(head) + 4 + 4 * count
    first_shape = first_table + _TABLE_BYTES * count
    first_shape += (4 - first_shape) % 8
    at = first_shape + sum([8 + 8 * len(shape) for _, shape, _, _ in forms])
    tables: list[int] = []
    shapes: list[bytes] = []
    gaps: list[bytes] = []  # padding before the data, and its count where the table has none
    table, shape_at = first_table, first_shape
    for number, shape, size, numeric in forms:
        if numeric:
            vtable, pad = _TENSOR_VTABLE_AT, (-at - 4) % _ALIGN
            gaps.append(_ZEROS[:pad] + _WORD.pack(size))
        else:
            vtable, pad = _STRINGS_VTABLE_AT, -at % 4
            gaps.append(_ZEROS[:pad])
        tables += (table - vtable, number, shape_at - table - 8, at + pad - table - 12)
        shapes.append(_pack_shape(shape))
        table += _TABLE_BYTES
        shape_at += 8 + 8 * len(shape)
        at += len(gaps[-1]) + size
        if at > MAX_MESSAGE_BYTES:
            raise _too_large(at)
    head += pack(f"<I{count}I", count, *range(4 * count, 16 * count, 12))
    head += pack(f"<{4 * count}I", *tables)
    head += _ZEROS[: first_shape - len(head)]
    head += b"".join(shapes)
    head += gaps[0]
    return [head, *map(bytearray, gaps[1:])]


def _pack_shape(shape: Shape) -> bytes:
    rank = len(shape)
    if rank < len(_SHAPE_FORMS):
        return _SHAPE_FORMS[rank].pack(rank, *shape)
    return pack(f"<I{rank}q4x", rank, *shape)


def _too_large(found: int) -> TooLarge:
    return TooLarge(
        f"GraphPipe message would have {found} bytes, at most {MAX_MESSAGE_BYTES} are possible",
        limit="message_bytes",
    )
