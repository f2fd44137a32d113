"""The forms of tensor data, and the wire forms of BYTES and BOOL.

Data stays in the form in which it was received. `as_raw`, `as_numpy` and `as_items` of
`gateway.ir.tensors.tensor` convert it on demand.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from gateway.ir.bodies.streaming_body import StreamingBody
from gateway.ir.errors import InvalidTensor
from gateway.ir.tensors.items import (
    LENGTH,
    ItemViews,
    count_items,
    even_items,
    even_length,
    walk_items,
)
from gateway.ir.values.nearest import Reread
from gateway.ir.work import BYTE, charge

_MANY_BYTES = 1 << 20


class RawData(Struct, frozen=True, eq=False):
    """Elements in wire form: little-endian, row-major, no padding.

    Each BYTES element is a 4-byte little-endian length followed by the bytes.
    """

    view: memoryview


class ArrayData(Struct, frozen=True, eq=False):
    """A numpy array of the datatype's dtype; not for BYTES."""

    array: npt.NDArray[Any]


class ItemsData(Struct, frozen=True, eq=False):
    """The elements of a BYTES tensor, in row-major order."""

    items: Sequence[bytes | memoryview]


class SlicedData(Struct, frozen=True, eq=False):
    """One tensor's slice of a buffer that holds several tensors end to end, in wire form.

    The end of the slice depends on the datatypes of all the tensors, which only the model knows.
    `Complete` replaces it by `RawData`.

    Attributes:
        whole: The buffer.
        index: Position of this tensor's slice, counted from 0.
        declared_bytes: The size that the sender declared; None where it declared none.
    """

    whole: memoryview
    index: int
    declared_bytes: int | None = None


class SharedMemoryData(Struct, frozen=True):
    """Elements to read from, or to write to, a registered region of shared memory.

    Attributes:
        region: Its registered name.
        offset: Into the region, bytes.
    """

    region: str
    offset: int
    size_bytes: int


class StreamedData(Struct, frozen=True, eq=False):
    """Elements in the form of `RawData`, still being received; never BYTES.

    Attributes:
        source: The body that contains the elements.
        start: Offset of the first element in the body.
    """

    source: StreamingBody
    start: int
    size_bytes: int


class JsonItemsData(Struct, frozen=True, eq=False):
    """The elements of a BYTES tensor, some of which are JSON values other than strings.

    MLServer and KServe accept and send these, such as `null`. Only JSON carries them, so
    `as_raw`, `as_numpy` and `as_items` refuse them.

    Attributes:
        values: The JSON text of each element, in row-major order.
    """

    values: Sequence[bytes]


class JsonLayout(enum.Enum):
    """How a JSON value without a datatype holds the elements of a tensor."""

    VALUE = "value"
    """The value is nested as the tensor."""
    MEMBERS = "members"
    """The rows were objects; the value is the list of one member of each."""
    TABLE = "table"
    """The rows are lists, with one value for each column."""
    RECORDS = "records"
    """As `TABLE`, of rows that were objects."""
    LINES = "lines"
    """As `TABLE`, of the lines of a CSV text."""
    ELEMENT = "element"
    """The value is the only element of a tensor of any rank."""
    FIELD = "field"
    """The value is that of a field of a form, or of a body of no type: the JSON in its bytes, or
    the bytes themselves where they are no JSON. An input of BYTES gets the bytes."""


class UntypedRules(Struct, frozen=True, kw_only=True):
    """What a protocol allows where JSON values become typed elements.

    Attributes:
        protocol: Its name, for what the configuration declares of a model for it.
        has_b64: An object with `b64` as its only key is bytes.
        has_nonfinite: NaN and infinities are numbers.
        has_nulls: `null` is NaN for floats.
        has_texts: Elements are texts that hold numbers, as in CSV.
        rounds_to_infinity: A number beyond FP32 is an infinity there; otherwise it is refused.
        drops_surplus: Inputs that the model lacks are ignored.
        has_whole_floats: A float without a fraction is an integer, up to 2**53.
        has_doubles_only: Integers beyond 2**53 are refused where the model has integers, because
            the protocol carries numbers as doubles.
        has_bits: 0 and 1 are elements of BOOL.
        has_single_values: One value is a column of one, where the model has a column.
        has_empty_tensors: An empty list is an empty tensor of any rank.
        bytes_element_size: Most bytes of one element of BYTES.
        adds_axis: The value is one item: its tensor gets a first axis of 1.
        has_elements: The bytes of a `FIELD` are the elements of a tensor in wire form.
        setting: The key of the configuration that declares the form of a request, for errors; ""
            where there is none.
    """

    protocol: str = ""
    has_b64: bool = True
    has_nonfinite: bool = True
    has_nulls: bool = False
    has_texts: bool = False
    rounds_to_infinity: bool = False
    drops_surplus: bool = False
    has_whole_floats: bool = False
    has_doubles_only: bool = False
    has_bits: bool = False
    has_single_values: bool = False
    has_empty_tensors: bool = False
    bytes_element_size: int = 16 << 20
    adds_axis: bool = False
    has_elements: bool = False
    setting: str = ""


class UntypedData(Struct, frozen=True, eq=False):
    """A JSON value whose datatype only the model knows, and where it stands in its message.

    `Complete` replaces it by a form with a datatype.

    Attributes:
        value: A scalar or nested lists; or an array of int64, uint64 or float64 with the shape of
            the lists, if a long message has numbers only; or the text of JSON, of regular lists of
            numbers in a short message.
        layout: How the value holds the elements.
        place: Where it stands, such as "instances" or "inputs.INPUT0".
        rules: What the protocol allows.
        member: The key in each row, or the column of a table.
        columns: Names of the columns of a whole table; None for the value of one tensor.
        size_bytes: Bytes of the message; 0 for all tensors but the first.
        first_fraction: In float64 and lists with some: the first element that was not an integer.
        shape: The shape of a flat list with the elements in row-major order; None for lists that
            are nested as the tensor.
        raw: The bytes of a `FIELD`. Of other layouts: those of the whole message, which are the
            element of BYTES of a model with that input only, if the message does not name it.
        reread: Reads the value again; None where it is a text, or its message has no decimals.
    """

    value: Any
    layout: JsonLayout
    place: str
    rules: UntypedRules
    member: str = ""
    columns: tuple[str, ...] | None = None
    size_bytes: int = 0
    first_fraction: int = 0
    shape: tuple[int, ...] | None = None
    raw: memoryview | None = None
    reread: Reread | None = None


TensorData = (
    RawData
    | ArrayData
    | ItemsData
    | SlicedData
    | SharedMemoryData
    | StreamedData
    | JsonItemsData
    | UntypedData
)


def raw_of(data: TensorData, dtype: np.dtype[Any]) -> bytes | memoryview | None:
    """Return raw data, or a copy of an array of *dtype*; None for other data."""
    if type(data) is RawData:
        return data.view
    if type(data) is ArrayData and data.array.dtype is dtype:
        return data.array.tobytes()
    return None


def split_items(name: str, view: memoryview, expected: int | None = None) -> Sequence[memoryview]:
    """Split the wire form of a BYTES tensor into its elements, as views.

    Args:
        name: Tensor name for errors.
        view: Elements, each a 4-byte little-endian length and then that many bytes.
        expected: Required number of elements; None for any.

    Raises:
        InvalidTensor: A length exceeds the buffer, or the count is not *expected*.

    Source: Open Inference Protocol, binary tensor extension, "BYTES".
    """
    count = expected
    if count is None and view.nbytes >= LENGTH.size:
        # Perhaps all elements are as long as the first one.
        count = view.nbytes // (LENGTH.size + LENGTH.unpack_from(view)[0])
    if count and even_length(view, count) is not None:
        return even_items(view, count, LENGTH.size)
    items, end = walk_items(view, expected)
    if end != view.nbytes or (expected is not None and len(items) != expected):
        raise InvalidTensor(_invalid_items(name, view, len(items), expected))
    return items


def join_items(name: str, items: Sequence[bytes | memoryview]) -> memoryview:
    """Return the wire form of BYTES elements; copies.

    Raises:
        InvalidTensor: An element is 4 GiB or longer.
    """
    charge(len(items))
    if isinstance(items, ItemViews):
        packed = items.packed()
        if packed is not None:
            return packed
    parts: list[bytes | memoryview] = []
    pack = LENGTH.pack
    try:
        for item in items:
            parts.append(pack(len(item)))
            parts.append(item)
    except struct.error as error:
        raise InvalidTensor(f"tensor {name!r} has an element of 4 GiB or more") from error
    return memoryview(b"".join(parts))


def check_items(name: str, view: memoryview, expected: int) -> None:
    """Check that the wire form of a BYTES tensor has *expected* elements; allocates no elements.

    Raises:
        InvalidTensor: A length exceeds the buffer, or the count is not *expected*.
    """
    if even_length(view, expected) is not None:
        return
    found, end = count_items(view, expected)
    if end != view.nbytes or found != expected:
        raise InvalidTensor(_invalid_items(name, view, found, expected))


def as_bools(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return an array of BOOL whose bytes are 0 and 1, which numpy expects; a copy if need be.

    Clients send other bytes (perf_analyzer's random data), and every byte other than 0 is true.
    """
    if array.nbytes > _MANY_BYTES:
        charge(array.nbytes * BYTE)
    found = array.view(np.uint8)
    return array if not found.size or found.max() <= 1 else found != 0


def _invalid_items(name: str, view: memoryview, found: int, expected: int | None) -> str:
    if expected is not None and found == expected:
        return f"tensor {name!r} has bytes after its {expected} BYTES elements"
    required = "" if expected is None else f", its shape needs {expected}"
    return (
        f"tensor {name!r}: {view.nbytes} bytes hold only {found} complete BYTES elements{required};"
        " each is a 4-byte little-endian length followed by its bytes"
    )
