"""Reads rows: JSON without datatypes, as tensors whose datatypes only the model knows.

Five protocols send it: a list with one value or object for each row, an object of columns, or a
table. `write.py` writes rows, `gateway.ir.values.untyped` has the values.

orjson reads short documents. In long ones simdjson keeps lists as proxies, and lists of numbers
become arrays of 64-bit numbers without Python objects. Python's parser reads what only it can: NaN
and infinities, and integers of more than 64 bits.

Source: docs/protocols/rows.md, "1. Forms".
"""

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from operator import itemgetter
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
import simdjson
from msgspec import structs

from gateway.ir.errors import InvalidRequest, MalformedMessage, TooLarge
from gateway.ir.limits import MessageLimits, check_count, check_name, check_shape
from gateway.ir.tensors.data import JsonLayout, UntypedData, UntypedRules
from gateway.ir.tensors.tensor import Tensor
from gateway.ir.values.json_objects import (
    count_marks,
    has_long_numbers,
    reserve_objects,
    reserve_parser,
)
from gateway.ir.values.nearest import Reread, loads_to_odd
from gateway.ir.values.number_lists import is_nested, nested_shape
from gateway.ir.work import (
    JSON_ELEMENT,
    LIST,
    OBJECT_BYTE,
    PARSED_BYTE,
    PARSED_NUMBER,
    charge,
    reserve,
)
from gateway.wire.json.values import (
    check_depth,
    count_keys,
    load_json,
    plain_value,
    too_deep,
    without_mark,
)
from gateway.wire.rows.regular_lists import has_regular_lists
from gateway.wire.rows.tables import column_names, is_object, repeated_key, show, table_tensor

# Below this size orjson is faster, above it simdjson.
SIMD_FROM_BYTES: Final = 8192
_SHOWN: Final = 64
_FEW_KEYS: Final = 16
# Bytes for a value of a row that is an object, with its place in a list.
_ROW_VALUE: Final = 40
# Arrays of so many rows become one.
_BLOCK_ROWS: Final = 1024
# Work for a member of an object, in items.
_MEMBER: Final = 2
_WORDS: Final = (b"NaN", b"Infinity")
_LISTS: Final = (list, simdjson.Array)
_PROXIES: Final = (simdjson.Array, simdjson.Object)
_CODES: Final[tuple[tuple[str, npt.DTypeLike], ...]] = (("i", "=i8"), ("u", "=u8"), ("d", "=f8"))


@dataclass(slots=True)
class RowsDocument:
    """The members of a JSON object that holds rows.

    Attributes:
        members: Values of JSON; lists and objects of a long document are proxies.
        text: The whole text.
        reread: Returns the members with their decimals as `ir.nearest.to_odd` returns them; None
            where they are those of the text.
    """

    members: Mapping[str, Any]
    text: memoryview
    reread: Callable[[], Mapping[str, Any]] | None = None

    def plain(self, key: str) -> Any:
        """Return a member as Python objects; None where it is absent.

        Raises:
            LongWork: Memory must be reserved for them.
        """
        return plain_value(self.members.get(key))


def read_rows_document(
    view: memoryview,
    what: str,
    limits: MessageLimits,
    *,
    has_nonfinite: bool = True,
    has_more_text: bool = False,
) -> RowsDocument:
    """Read a JSON object.

    Args:
        view: The whole text.
        what: Names the document in errors.
        limits: `json_bytes`, `json_depth`, `json_keys` and `bytes_elements` are enforced.
        has_nonfinite: NaN, Infinity and -Infinity are read.
        has_more_text: Text after the object is ignored.

    Raises:
        MalformedMessage: It is not JSON, not an object, or an object has a key twice.
        TooLarge: A limit is exceeded.
    """
    value = read_any(view, what, limits, has_nonfinite=has_nonfinite, has_more_text=has_more_text)
    if type(value) is dict:
        return RowsDocument(value, view)
    if type(value) is not simdjson.Object:
        raise MalformedMessage(f"{what} is {show(value)}: expected an object")
    return RowsDocument(_members(value, what, limits), view)


def read_any(
    view: memoryview,
    what: str,
    limits: MessageLimits,
    *,
    has_nonfinite: bool = True,
    has_more_text: bool = False,
) -> Any:
    """Read any JSON value, as `read_rows_document` reads an object."""
    if view.nbytes > limits.json_bytes:
        raise TooLarge(
            f"{what} has {view.nbytes} bytes of JSON, at most {limits.json_bytes} are allowed "
            "(json_bytes)",
            limit="json_bytes",
        )
    view = without_mark(view)
    if view.nbytes >= SIMD_FROM_BYTES and not has_long_numbers(view):
        charge(view.nbytes * PARSED_BYTE, view.nbytes * JSON_ELEMENT)
        reserve_parser(view)
        try:
            return simdjson.Parser().parse(view)  # makes the only copy, with padding behind it
        except (ValueError, RuntimeError) as error:
            if "DEPTH" in str(error):
                raise too_deep(what, limits) from error
    text = bytes(view)
    if len(text) >= SIMD_FROM_BYTES:
        _check_objects(text, what, limits)
    try:
        value = load_json(text, what)
    except MalformedMessage:
        if not has_more_text and not (has_nonfinite and any(word in text for word in _WORDS)):
            raise
        return _read_slowly(text, what, limits, has_nonfinite, has_more_text)
    if text.count(b"[") + text.count(b"{") > limits.json_depth:
        check_depth([value], what, limits)
    colons = text.count(b":")
    # As many as the outermost keys: there are no others, and none of them is hidden.
    is_plain = type(value) is dict and colons == len(value)
    if not is_plain and colons != count_keys(value):
        _read_slowly(text, what, limits, has_nonfinite, has_more_text)  # finds a repeated key
    return value


def _check_objects(text: bytes, what: str, limits: MessageLimits) -> None:
    """Bound the Python objects that a long text becomes, of many times its size."""
    charge(len(text) * OBJECT_BYTE)
    check_count(f"values in {what}", text.count(b",") + 1, limits.bytes_elements, "bytes_elements")


def _read_slowly(
    text: bytes, what: str, limits: MessageLimits, has_nonfinite: bool, has_more_text: bool
) -> Any:
    charge(len(text) * OBJECT_BYTE)
    reserve_objects(text)
    decoder = json.JSONDecoder(
        object_pairs_hook=_each_once,
        parse_float=_finite,
        parse_constant=None if has_nonfinite else _no_constant,
    )
    try:
        source = text.decode()
        start = len(source) - len(source.lstrip(" \t\r\n"))
        value, end = decoder.raw_decode(source, start)
        json.dumps(value, ensure_ascii=False).encode()  # refuses lone surrogates
    except RecursionError as error:
        raise too_deep(what, limits) from error
    except ValueError as error:
        raise MalformedMessage(f"{what} is not JSON: {error}") from error
    if not has_more_text and source[end:].strip(" \t\r\n"):
        raise MalformedMessage(f"{what} is not JSON: text follows its end at character {end}")
    check_depth([value], what, limits)
    return value


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {repeated_key(keys)[:_SHOWN]!r} occurs twice in one object")
    return found


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"number {text[:_SHOWN]} is out of the range of FP64")
    return value


def _no_constant(word: str) -> float:
    raise ValueError(f"{word} is no number of JSON")


def _members(item: Any, what: str, limits: MessageLimits) -> dict[str, Any]:
    """Return the members of a simdjson Object."""
    count = len(item)
    check_count(f"keys of {what}", count, limits.json_keys, "json_keys")
    if count > _FEW_KEYS and count * count > len(cast("bytes", item.mini)):
        # To look all members up costs more than to read the object.
        members = cast("dict[str, Any]", plain_value(item))
        if len(members) == count:
            return members
    keys = list(item)
    if len(set(keys)) != len(keys):
        raise MalformedMessage(
            f"{what} has the key {repeated_key(keys)[:_SHOWN]!r} twice in one object"
        )
    try:
        return {key: item[key] for key in keys}
    except KeyError as error:  # simdjson compares it up to its first NUL
        raise MalformedMessage(f"{what} has the key {error}, which cannot be read") from None


class RowsReader:
    """Reads the rows of one message.

    Args:
        document: The message.
        limits: The limits of the message.
        rules: What the protocol allows.
    """

    def __init__(self, document: RowsDocument, limits: MessageLimits, rules: UntypedRules) -> None:
        self._document = document
        self._limits = limits
        self._rules = rules
        self._is_slow = self._is_bounded = False
        # Opening brackets: of the rows, and of other members.
        self._lists = self._others = 0
        self._numeric = 0
        self._first_fraction = 0
        self._is_regular: bool | None = None

    def rows(self, key: str, *, allows_empty: bool = False) -> tuple[Tensor, ...]:
        """Read a list with one value or one object for each row.

        Values are one tensor without a name, whose first axis is that of the rows. Objects have
        the same keys, which are the names of the tensors.

        Raises:
            InvalidRequest: It is no list, is empty, mixes values and objects, or has other keys.
            TooLarge: A limit is exceeded.
        """
        return self._checked(
            lambda: self._rows(key, allows_empty),
            lambda other: other.rows(key, allows_empty=allows_empty),
        )

    def columns(self, key: str) -> tuple[Tensor, ...]:
        """Read a value of one tensor, or an object with one for each tensor.

        Raises:
            InvalidRequest: It is null, or an object without members.
            TooLarge: A limit is exceeded.
        """
        return self._checked(lambda: self._columns(key), lambda other: other.columns(key))

    def split_table(self, key: str) -> tuple[Tensor, ...]:
        """Read an object with `columns`, `data` and perhaps `index`: a table.

        Raises:
            InvalidRequest: A member is missing or wrong, or a row is too short or too long.
            TooLarge: A limit is exceeded.
        """
        return self._checked(lambda: self._split(key), lambda other: other.split_table(key))

    def record_table(self, key: str) -> tuple[Tensor, ...]:
        """Read a list of objects, one for each row of a table; a missing key is null.

        Raises:
            InvalidRequest: It is no list of objects, or has none.
            TooLarge: A limit is exceeded.
        """
        return self._checked(lambda: self._records(key), lambda other: other.record_table(key))

    def _checked(
        self,
        read: Callable[[], tuple[Tensor, ...]],
        read_by: Callable[["RowsReader"], tuple[Tensor, ...]],
    ) -> tuple[Tensor, ...]:
        """Read again with Python objects, if an array may have flattened a list silently.

        *read_by* reads the same with another reader, see `UntypedData.reread`.
        """
        tensors = read()
        # Where all lists are regular, an array has flattened none.
        is_checked = not self._numeric or self._has_regular_lists
        if not is_checked and self._lists + self._others != _brackets(self._document.text):
            self._is_slow = True
            tensors = read()
        found = []
        size = self._document.text.nbytes
        values = values_to_odd(self._document, self._limits, self._rules, read_by)
        for at, tensor in enumerate(tensors):
            data = cast("UntypedData", tensor.data)
            reread = values.then(itemgetter(at))
            # Of data, not of calls.
            data = structs.replace(data, size_bytes=0 if at else size, reread=reread)  # noqa: TID251
            found.append(Tensor(tensor.name, None, None, data))
        return tuple(found)

    def _rows(self, key: str, allows_empty: bool) -> tuple[Tensor, ...]:
        found = self._document.members.get(key)
        self._start(key)
        if found is None or type(found) not in _LISTS:
            raise InvalidRequest(f"{key} is {show(found)}: expected a list of rows")
        if not len(found) and not allows_empty:
            raise InvalidRequest(f"{key} is an empty list: expected at least one row")
        first = found[0] if len(found) else None
        if not is_object(first) or self._is_b64(first):
            return (self._tensor("", key, self._value(found)),)
        return self._objects(key, found)

    def _is_b64(self, value: Any) -> bool:
        if not self._rules.has_b64 or len(value) != 1:  # to list its keys would take their memory
            return False
        return list(value) == ["b64"] and type(value["b64"]) is str

    def _objects(self, key: str, found: Any) -> tuple[Tensor, ...]:
        names = list(found[0])
        fractions: dict[str, int] = {}
        check_count(f"keys of {key}[0]", len(names), self._limits.tensors, "tensors")
        _check_names(names, f"{key}[0]")
        count = len(found) * len(names)
        check_count(f"values in {key}", count, self._limits.bytes_elements, "bytes_elements")
        charge(count * _MEMBER)
        reserve(self._document.text.nbytes, count * _ROW_VALUE)
        self._lists += 1
        values: dict[str, list[Any]] = {name: [] for name in names}
        blocks: dict[str, list[Any]] = {name: [] for name in names}
        for index, row in enumerate(found):
            if index % _BLOCK_ROWS == 0:
                _end_block(values, blocks)
            if not is_object(row):
                raise InvalidRequest(
                    f"{key}[{index}] is {show(row)}: expected an object, as {key}[0] is one"
                )
            members = row if type(row) is dict else _members(row, f"{key}[{index}]", self._limits)
            if members.keys() != values.keys():
                raise _other_keys(f"{key}[{index}]", members, names, f"{key}[0]")
            for name, value in members.items():
                item = self._value(value)
                values[name].append(item)
                if isinstance(item, np.ndarray) and item.dtype.kind == "f":
                    fractions.setdefault(name, index * item.size + self._first_fraction)
        _end_block(values, blocks)
        return tuple(
            [
                self._tensor(
                    name, key, _one_array(parts), JsonLayout.MEMBERS, name, fractions.get(name, 0)
                )
                for name, parts in blocks.items()
            ]
        )

    def _columns(self, key: str) -> tuple[Tensor, ...]:
        found = self._document.members.get(key)
        self._start(key)
        if found is None:
            raise InvalidRequest(f"{key} is null: expected a value, or an object of inputs")
        if not is_object(found) or self._is_b64(found):
            return (self._tensor("", key, self._value(found)),)
        members = found if type(found) is dict else _members(found, key, self._limits)
        check_count(f"keys of {key}", len(members), self._limits.tensors, "tensors")
        _check_names(members, key)
        return tuple(
            [
                self._tensor(name, f"{key}.{name}", self._value(value))
                for name, value in members.items()
            ]
        )

    def _split(self, key: str) -> tuple[Tensor, ...]:
        found = self._document.members.get(key)
        self._start(key)
        if not is_object(found):
            raise InvalidRequest(f"{key} is {show(found)}: expected an object")
        members = found if type(found) is dict else _members(found, key, self._limits)
        names, data = members.get("columns"), members.get("data")
        if names is not None and is_list(names):
            check_count(f"names in {key}.columns", len(names), self._limits.json_keys, "json_keys")
        names = plain_value(names)
        if type(names) is not list or not names:
            raise InvalidRequest(f"{key}.columns is {show(names)}: expected a list of names")
        self._others += sum(_count_lists(members.get(each)) for each in ("columns", "index"))
        columns = column_names(names, f"{key}.columns", self._limits)
        if data is None or type(data) not in _LISTS:
            raise InvalidRequest(f"{key}.data is {show(data)}: expected a list of rows")
        index = members.get("index")
        if index is not None and type(index) in _LISTS and len(index) != len(data):
            raise InvalidRequest(
                f"{key}.index has {len(index)} items: expected {len(data)}, as {key}.data has rows"
            )
        rows = self._value(data)
        is_few = isinstance(rows, np.ndarray) and rows.size <= self._limits.bytes_elements
        if is_few and _may_have_integers(rows):
            charge(rows.size)
            rows = plain_value(data)
        return self._table(f"{key}.data", columns, rows, JsonLayout.TABLE)

    def _records(self, key: str) -> tuple[Tensor, ...]:
        found = self._document.members.get(key)
        self._start(key)
        if found is not None and is_list(found) and len(found) and not is_object(found[0]):
            raise InvalidRequest(f"{key}[0] is {show(found[0])}: expected an object")
        if found is not None and type(found) in _PROXIES:
            if len(found):
                check_count(f"names in {key}", len(found[0]), self._limits.json_keys, "json_keys")
            self._check_objects()
            marks = count_marks(self._document.text)
            if marks.objects + marks.lists > len(found) + _FEW_KEYS:  # not of plain values alone
                found = plain_value(found)
        if found is None or not is_list(found) or not len(found):
            raise InvalidRequest(f"{key} is {show(found)}: expected a list of objects")
        names: dict[str, None] = {}
        rows: list[list[Any]] = []
        for index, row in enumerate(found):  # an object at a time
            if not is_object(row):
                raise InvalidRequest(f"{key}[{index}] is {show(row)}: expected an object")
            members = row if type(row) is dict else row.as_dict()
            names.update(dict.fromkeys(members))
            count = (index + 1) * len(names)
            check_count(f"values in {key}", count, self._limits.bytes_elements, "bytes_elements")
            rows.append([members.get(name) for name in names])
        columns = column_names(list(names), key, self._limits)
        if not columns:
            raise InvalidRequest(f"{key}[0] is an empty object: expected the columns of a table")
        charge(len(rows) * len(columns))
        for values in rows:  # the first ones lack the names that came later
            values.extend([None] * (len(columns) - len(values)))
        return self._table(key, columns, rows, JsonLayout.RECORDS)

    def _table(
        self, place: str, columns: tuple[str, ...], rows: Any, layout: JsonLayout
    ) -> tuple[Tensor, ...]:
        return (table_tensor(place, columns, rows, layout, self._rules),)

    def _start(self, key: str) -> None:
        self._lists = self._numeric = 0
        self._others = sum(
            _count_lists(value) for name, value in self._document.members.items() if name != key
        )

    def _tensor(
        self,
        name: str,
        place: str,
        value: Any,
        layout: JsonLayout = JsonLayout.VALUE,
        member: str = "",
        first_fraction: int | None = None,
    ) -> Tensor:
        if name:
            check_name("name of an input", name, self._limits.name_bytes, "name_bytes")
        check_shape(name, None, nested_shape(value), self._limits)
        index = self._first_fraction if first_fraction is None else first_fraction
        data = UntypedData(value, layout, place, self._rules, member, first_fraction=index)
        return Tensor(name, None, None, data)

    def _value(self, value: Any) -> Any:
        """Return a value as Python objects, or as an array of numbers."""
        if type(value) not in _PROXIES:
            return value
        if type(value) is simdjson.Array and not self._is_slow:
            array = self._numbers(value)
            if array is not None:
                return array
        self._check_objects()
        plain = plain_value(value)
        check_depth([plain], "the message", self._limits)
        self._lists += _count_lists(plain)
        return plain

    def _check_objects(self) -> None:
        """Bound the Python objects of a long message, once."""
        if not self._is_bounded:
            _check_objects(bytes(self._document.text), "the message", self._limits)
            self._is_bounded = True

    def _numbers(self, data: Any) -> npt.NDArray[Any] | None:
        """Return nested lists of numbers as an array; None for other elements or nesting."""
        shape = self._shape_of_numbers(data)
        if shape is None:
            return None
        # Most lists are of one kind, which their first number shows.
        begins_with_float = type(_first_leaf(data)) is float
        for code, dtype in _CODES[-1:] if begins_with_float else _CODES:
            try:
                found = np.frombuffer(data.as_buffer(of_type=code), dtype)
            except (TypeError, ValueError):
                continue
            first: int | None = 0
            if code == "d" and not begins_with_float:
                first = _first_fraction(data, found.size)
            # Without a fraction: integers of both signs that need 64 bits each.
            if found.size != math.prod(shape) or first is None:
                return None
            self._first_fraction = first
            self._lists += _lists_of(shape)
            self._numeric += 1
            return found.reshape(shape)
        return None

    def _shape_of_numbers(self, data: Any) -> tuple[int, ...] | None:
        """Return the shape of regularly nested lists whose first element is a number."""
        shape: list[int] = []
        item = data
        while type(item) is simdjson.Array and len(shape) <= self._limits.rank:
            shape.append(len(item))
            item = item[0] if len(item) else None
        if type(item) not in (int, float) or len(shape) > self._limits.rank:
            return None
        lists, count = _lists_of(shape), math.prod(shape)
        if lists > self._limits.bytes_elements or count > self._limits.elements:
            return None
        charge(count * PARSED_NUMBER, 0)
        if self._has_regular_lists:
            return tuple(shape)
        charge(lists * LIST, 0)
        is_regular = len(shape) == 1 or is_nested(data, tuple(shape[1:]))
        return tuple(shape) if is_regular else None

    @property
    def _has_regular_lists(self) -> bool:
        if self._is_regular is None:
            self._is_regular = has_regular_lists(self._document.text)
        return self._is_regular


def values_to_odd(
    document: RowsDocument,
    limits: MessageLimits,
    rules: UntypedRules,
    read: Callable[[RowsReader], tuple[Tensor, ...]],
) -> Reread:
    """Return what reads a message again: the values of the tensors that *read* reads, once."""
    reread, text = document.reread, document.text  # not the parser's memory, which *document* holds

    @cache
    def values() -> tuple[Any, ...]:
        members = loads_to_odd(text) if reread is None else reread()
        reader = RowsReader(RowsDocument(members, text), limits, rules)
        return tuple([cast("UntypedData", tensor.data).value for tensor in read(reader)])

    return Reread(text, values)


def _brackets(text: memoryview) -> int:
    """Return how often a list begins in a text, those in strings included."""
    return int(np.count_nonzero(np.frombuffer(text, np.uint8) == ord("[")))


def _stacked(values: list[Any]) -> Any:
    """Return the values of one member in all rows, as one array where all are arrays."""
    kinds = set(map(type, values))
    if np.ndarray not in kinds:
        return values
    if kinds == {np.ndarray} and len({value.shape for value in values}) == 1:
        dtypes = {value.dtype.kind for value in values}
        if len(dtypes) == 1 or "f" in dtypes:
            return np.stack(values)
    return [value.tolist() if isinstance(value, np.ndarray) else value for value in values]


def _end_block(values: dict[str, list[Any]], blocks: dict[str, list[Any]]) -> None:
    """Move the values of some rows to *blocks*: many small arrays become one."""
    for name, some in values.items():
        if some:
            blocks[name].append(_stacked(some))
            values[name] = []


def _one_array(blocks: list[Any]) -> Any:
    """Return blocks of rows as one array where all are arrays, otherwise as one list."""
    if len(blocks) == 1:
        return blocks[0]
    if all(isinstance(block, np.ndarray) for block in blocks):
        dtypes = {block.dtype.kind for block in blocks}
        if len({block.shape[1:] for block in blocks}) == 1 and (len(dtypes) == 1 or "f" in dtypes):
            return np.concatenate(blocks)
    return [
        value
        for block in blocks
        for value in (block.tolist() if isinstance(block, np.ndarray) else block)
    ]


def _lists_of(shape: Sequence[int]) -> int:
    """Return how many lists a shape is written with."""
    return sum(math.prod(shape[:depth]) for depth in range(len(shape)))


def _first_leaf(data: Any) -> Any:
    """Return the first element of nested lists without empty ones."""
    while type(data) is simdjson.Array:
        data = data[0]
    return data


def _first_fraction(data: Any, count: int) -> int | None:
    """Return the index of the first float in nested lists of *count* numbers; None for none."""
    charge(count * PARSED_NUMBER, 0)
    return next((at for at, each in enumerate(_leaves(data)) if type(each) is float), None)


def _leaves(data: Any) -> Iterator[Any]:
    for item in data:
        if type(item) is simdjson.Array:
            yield from _leaves(item)
        else:
            yield item


def _may_have_integers(rows: npt.NDArray[Any]) -> bool:
    """Return whether a column of a table of floats may have integers only."""
    is_table = rows.ndim == 2  # noqa: PLR2004  # rows and columns
    return is_table and rows.dtype.kind == "f" and bool((rows == np.floor(rows)).all(0).any())


def object_members(value: Any, what: str, limits: MessageLimits) -> dict[str, Any]:
    """Return the members of an object in a document.

    Raises:
        InvalidRequest: It is no object.
        MalformedMessage: It has a key twice.
    """
    if not is_object(value):
        raise InvalidRequest(f"{what} is {show(value)}: expected an object")
    return value if type(value) is dict else _members(value, what, limits)


def is_list(value: Any) -> bool:
    """Return whether a member of a document is a list."""
    return type(value) in _LISTS


def _count_lists(value: Any) -> int:
    if type(value) in _PROXIES:
        text: Any = value.mini  # bytes, unlike in its stub
        return int(text.count(b"["))
    if type(value) is dict:
        return sum(map(_count_lists, value.values()))
    if type(value) is not list:
        return 0
    kinds = set(map(type, value))
    return 1 + (sum(map(_count_lists, value)) if kinds & {list, dict} else 0)


def _check_names(names: Collection[str], place: str) -> None:
    if not names:
        raise InvalidRequest(f"{place} is an empty object: expected the inputs of the model")
    if "" in names:
        raise InvalidRequest(f"{place} has an empty key: expected names of inputs")


def _other_keys(
    where: str, members: Mapping[str, Any], names: Sequence[str], first: str
) -> InvalidRequest:
    for name in names:
        if name not in members:
            return InvalidRequest(f"{where} lacks {name[:_SHOWN]!r}, which {first} has")
    other = next(name for name in members if name not in names)
    return InvalidRequest(f"{where} has {other[:_SHOWN]!r}, which {first} lacks")
