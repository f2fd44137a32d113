"""Reads JSON documents of Open Inference into dictionaries, with limits.

The limits are on size, depth and keys; `tensors.py` has the meaning of the members, `elements.py`
the tensor elements.  orjson reads small documents.  In large ones simdjson leaves every `data`
member as a proxy, so that its elements never become Python objects.

orjson and simdjson both keep one of two equal keys silently, and another parser may keep the other,
so duplicates are refused.  Triton repeats keys in the parameters of its replies: there the last one
counts.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import orjson
import simdjson

from gateway.ir.errors import MalformedMessage, TooLarge
from gateway.ir.limits import MessageLimits, check_count
from gateway.ir.values.json_objects import STRING, has_long_numbers, reserve_objects, reserve_parser
from gateway.ir.values.nearest import loads_to_odd
from gateway.ir.work import JSON_BYTE, JSON_ELEMENT, OBJECT_BYTE, PARSED_BYTE, charge
from gateway.protocols.oip.dialects import NonfiniteWords
from gateway.protocols.oip.json.binary_tensors import BINARY_SIZE
from gateway.wire.json.values import (
    check_depth,
    load_json,
    read_value,
    too_deep,
    without_mark,
)

# Below this size orjson is faster, above it simdjson.
SIMD_FROM_BYTES: Final = 8192

_PARAMETERS = "parameters"
_TENSOR_LISTS = ("inputs", "outputs")
_TENSOR_MEMBERS = frozenset({"name", "shape", "datatype", "parameters", "data"})
_TOP_MEMBERS = frozenset({"id", "model_name", "model_version", "parameters", *_TENSOR_LISTS})
_SPACE = b" \t\r\n"
_BRACE = ord("{")
_BRACKET = ord("[")
_FEW_ARRAYS = 256
_PIECE_BYTES = 1 << 17
_SHOWN = 64
# A larger document never becomes Python objects: that takes up to 40 times its size.
_WHOLE_BYTES = 1 << 20
# Of large documents: the part of `json_bytes` that may be outside of tensor data, without strings,
# and steps to find unknown members.
_HELD_PART = 64
_LOOKUPS = 1 << 23
_LONG_BYTES = 1 << 22
# Work of one of these steps, in items.
_LOOKUP = 1 / 50


# A string, or a word that Python's parser does not read.
_RAPID_WORD = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|-NaN|-?Inf(?!inity)', re.DOTALL)
_PYTHON_WORDS: Final = {"-NaN": "NaN", "Inf": "Infinity", "-Inf": "-Infinity"}


@dataclass(slots=True)
class Document:
    """A parsed JSON object.

    Attributes:
        members: Its members; `data` of a tensor is a list, or a simdjson Array.
        arrays_left: Opening brackets in the text that are not accounted for; None without a
            proxy.  See `ElementReader.check_brackets`.
        text: The whole text, as Python's parser reads it.
    """

    members: dict[str, Any]
    arrays_left: int | None = None
    text: memoryview | str = ""
    _to_odd: Any = None

    def elements_to_odd(self, section: str, index: int) -> Any:
        """Return the `data` of a tensor with its decimals as `ir.nearest.to_odd` returns them."""
        if self._to_odd is None:
            self._to_odd = loads_to_odd(self.text)
        return self._to_odd[section][index]["data"]


def read_document(
    view: memoryview, what: str, limits: MessageLimits, *, lenient: bool = False
) -> Document:
    """Read one JSON object.

    Args:
        view: The whole text.
        what: Names the document in errors.
        limits: `json_bytes`, `json_depth`, `json_keys` and `tensors` are enforced.
        lenient: Objects called `parameters` may repeat keys; the last one counts.

    Raises:
        MalformedMessage: It is not JSON, not an object, or an object has a key twice.
        TooLarge: A limit is exceeded.
    """
    size = view.nbytes
    if size > limits.json_bytes:
        raise TooLarge(
            f"{what} has {size} bytes of JSON, at most {limits.json_bytes} are allowed; "
            "tensors may be sent as binary",
            limit="json_bytes",
        )
    if not size or view[0] != _BRACE:
        view = without_mark(view)
        if bytes(view[:_SHOWN]).lstrip(_SPACE)[:1] != b"{":
            raise MalformedMessage(f"{what} is not a JSON object: {_opening(view)}")
    if size < SIMD_FROM_BYTES:
        return Document(_read_small(text_of(view), what, limits, lenient=lenient), None, view)
    if has_long_numbers(view):
        charge(size * OBJECT_BYTE, size * JSON_ELEMENT)
        return Document(_read_small(text_of(view), what, limits, lenient=lenient), None, view)
    # A long document may be nothing but short numbers, which shows only once it is parsed.
    charge(size * (JSON_BYTE if size > _LONG_BYTES else PARSED_BYTE), size * JSON_ELEMENT)
    return _read_large(view, what, limits, lenient=lenient)


def text_of(view: memoryview) -> bytes:
    """Return a view as bytes, without a copy where it views received bytes."""
    whole = view.obj
    return whole if type(whole) is bytes and len(whole) == view.nbytes else bytes(view)


def _read_small(text: bytes, what: str, limits: MessageLimits, *, lenient: bool) -> dict[str, Any]:
    document: dict[str, Any] = load_json(text, what)
    # Each key has one colon outside of strings. So as many colons as keys exclude duplicates and
    # strings with colons; otherwise check each object.
    if text.count(b":") != _count_keys(document):
        check_closely(text, what, limits, lenient=lenient)
    elif text.count(b"[") + text.count(b"{") > limits.json_depth:
        check_depth(document, what, limits)
    return document


def read_flat(
    view: memoryview, what: str, limits: MessageLimits, words: NonfiniteWords | None = None
) -> dict[str, Any]:
    """Read one JSON object without tensors, whatever its members are; with *words*, those too.

    Raises:
        MalformedMessage: It is not JSON, not an object, or an object has a key twice.
        TooLarge: It is too long or too deep, or has too many keys.
    """
    text = bytes(view)
    # Every value becomes a Python object, of many times its size.
    check_count(f"values in {what}", text.count(b",") + 1, limits.bytes_elements, "bytes_elements")
    try:
        document = read_value(view, what, limits)
    except MalformedMessage as error:
        if words is None:
            raise
        return _read_words(view, what, limits, error, words).members
    if type(document) is not dict:
        raise MalformedMessage(f"{what} is not a JSON object: {_opening(view)}")
    if text.count(b":") != _count_keys(document):
        check_closely(text, what, limits)
    return document


def _count_keys(document: dict[str, Any]) -> int:
    """Count the keys of the objects that Open Inference defines, without unknown ones."""
    count = len(document)
    parameters = document.get("parameters")
    if type(parameters) is dict:
        count += len(parameters)
    for member in _TENSOR_LISTS:
        tensors = document.get(member)
        if type(tensors) is not list:
            continue
        for tensor in tensors:
            if type(tensor) is dict:
                count += len(tensor)
                parameters = tensor.get("parameters")
                if type(parameters) is dict:
                    count += len(parameters)
    return count


def check_closely(text: bytes, what: str, limits: MessageLimits, *, lenient: bool = False) -> None:
    """Check keys and depth of a text that another parser accepted, object by object.

    Args:
        text: The whole text.
        what: Names the document in errors.
        limits: `json_depth` and `json_keys` are enforced.
        lenient: Objects called `parameters` may repeat keys.

    Raises:
        MalformedMessage: An object has a key twice.
        TooLarge: Too deep, or an object with too many keys.
    """
    charge(len(text) * OBJECT_BYTE)
    reserve_objects(text)
    objects = _CheckedObjects(what, limits, lenient=lenient)
    try:
        # Numbers are not converted: other parsers did, and int() refuses 4,301 digits.
        document = json.loads(
            text.decode(),
            object_pairs_hook=objects.read,
            parse_int=_nothing,
            parse_float=_nothing,
        )
    except RecursionError as error:
        raise too_deep(what, limits) from error
    except ValueError as error:
        raise MalformedMessage(f"{what} is not JSON: {error}") from error
    objects.finish()
    check_depth(document, what, limits)


class _CheckedObjects:
    """Makes dictionaries of the objects of one document, and finds keys that an object repeats.

    The parser reads an object before it knows the key that the object belongs to.  So an object
    with repeated keys is remembered until its parent shows that it is `parameters`.
    """

    def __init__(self, what: str, limits: MessageLimits, *, lenient: bool) -> None:
        self._what = what
        self._limits = limits
        self._is_lenient = lenient
        self._repeating: dict[int, dict[str, Any]] = {}
        self._first: MalformedMessage | None = None

    def read(self, found: list[tuple[str, Any]]) -> dict[str, Any]:
        """Return an object by its members; of equal keys the last counts."""
        what = self._what
        check_count(f"keys in an object of {what}", len(found), self._limits.json_keys, "json_keys")
        members = dict(found)
        if len(members) != len(found):
            keys = [key for key, _ in found]
            error = MalformedMessage(_twice(what, keys))
            # A size that comes twice makes a tensor ambiguous.
            if not self._is_lenient or keys.count(BINARY_SIZE) > 1:
                raise error
            self._first = self._first or error
            self._repeating[id(members)] = members
        if self._repeating:
            for key, value in found:
                if key == _PARAMETERS:
                    self._repeating.pop(id(value), None)
        return members

    def finish(self) -> None:
        """Raise `MalformedMessage` if an object other than `parameters` repeats a key."""
        if self._repeating and self._first is not None:
            raise self._first


def _read_large(view: memoryview, what: str, limits: MessageLimits, *, lenient: bool) -> Document:
    reserve_parser(view)
    try:
        root = simdjson.Parser().parse(view)  # makes the only copy, with padding behind it
    except (ValueError, RuntimeError) as error:
        if "DEPTH" in str(error):
            raise too_deep(what, limits) from error
        if view.nbytes > _WHOLE_BYTES:
            raise MalformedMessage(
                f"{what} is not JSON, or has an integer beyond 64 bits: {error}"
            ) from error
        # Not JSON, and orjson knows the position; or an integer beyond 64 bits, allowed as a float.
        charge(view.nbytes * OBJECT_BYTE)
        return Document(_read_small(text_of(view), what, limits, lenient=lenient), None, view)
    reader = _LargeReader(what, limits, lenient=lenient)
    try:
        members = reader.members(root, _TOP_MEMBERS, 1)
        for key in _TENSOR_LISTS:
            found = members.get(key)
            if type(found) is not simdjson.Array:
                continue
            check_count(f"{key} in {what}", len(found), limits.tensors, "tensors")
            tensors: list[Any] = []
            for item in found:
                if type(item) is simdjson.Object:
                    tensors.append(reader.members(item, _TENSOR_MEMBERS, 3))
                else:
                    tensors.append(None if type(item) is simdjson.Array else item)
            members[key] = tensors
    except UnicodeDecodeError as error:
        raise MalformedMessage(f"{what} is not JSON: {error}") from error
    return Document(members, _count_arrays(view), view)


def _count_arrays(view: memoryview) -> int:
    """Count opening brackets; where they are few, `find` is eight times as fast as `count`.

    Only bytes can be searched like this: they are copied in pieces that fit into the cache.
    """
    found = 0
    for start in range(0, view.nbytes, _PIECE_BYTES):
        piece = bytes(view[start : start + _PIECE_BYTES])
        at = piece.find(b"[")
        while at >= 0:
            found += 1
            if found == _FEW_ARRAYS:
                rest = np.frombuffer(view, np.uint8, offset=start + at + 1)
                return found + int(np.count_nonzero(rest == _BRACKET))
            at = piece.find(b"[", at + 1)
    return found


class _JsonText(bytes):
    """The text of a list or an object that is an unknown member."""

    __slots__ = ()


def unknown_members(members: Mapping[str, Any]) -> bytes:
    """Return the members of a message that Open Inference lacks, each with a comma behind it."""
    found = [key for key in members if key not in _TOP_MEMBERS]
    return b"".join([b"%b:%b," % (_text_of(key), _text_of(members[key])) for key in found])


def _text_of(value: Any) -> bytes:
    # Python's writer has long integers, lone surrogates and the words of lenient readers.
    return value if type(value) is _JsonText else json.dumps(value, separators=(",", ":")).encode()


class _LargeReader:
    """Takes objects of one large document apart, and bounds what it holds beside tensor data.

    A list or an object becomes Python objects of many times its size. A string does not, so its
    bytes do not count.
    """

    def __init__(self, what: str, limits: MessageLimits, *, lenient: bool) -> None:
        self._what = what
        self._limits = limits
        self._is_lenient = lenient
        self._held_bytes = 0
        self._lookups = 0

    def members(self, item: Any, wanted: frozenset[str], depth: int) -> dict[str, Any]:
        """Return the *wanted* members of *item*, which is *depth* levels deep; check the others.

        Those of the whole document are returned, too.

        Raises:
            MalformedMessage: An object has a key twice.
            TooLarge: Too many members, or too many bytes outside of tensor data.
        """
        what = self._what
        check_count(f"keys in an object of {what}", len(item), self._limits.json_keys, "json_keys")
        keys = list(item)
        found = set(keys)
        if len(found) != len(keys):
            raise MalformedMessage(_twice(what, keys))
        unknown = found - wanted
        # The lookup of a member costs as much as the object has members.
        self._lookups += len(unknown) * len(keys)
        charge(len(unknown) * len(keys) * _LOOKUP)
        if self._lookups > _LOOKUPS:
            raise TooLarge(f"{what} has too many unknown keys: {len(unknown)}", limit="json_keys")
        members: dict[str, Any] = {}
        for key in unknown:
            value = self._value(item, key)
            self._check_held(key, value, depth)
            if depth == 1:
                members[key] = _JsonText(getattr(value, "mini", b"")) or value
        for key in found & wanted:
            value = item[key]
            if type(value) is simdjson.Object:
                self._check_held(key, value, depth)
                value = value.as_dict()
            elif type(value) is simdjson.Array and key not in ("data", *_TENSOR_LISTS):
                self._check_held(key, value, depth)
                value = value.as_list()
            members[key] = value
        return members

    def _value(self, item: Any, key: str) -> Any:
        try:
            return item[key]
        except KeyError:  # simdjson compares it up to its first NUL
            raise MalformedMessage(
                f"{self._what} has the key {key[:_SHOWN]!r}, which cannot be read"
            ) from None

    def _check_held(self, key: str, value: Any, depth: int) -> None:
        if type(value) is not simdjson.Object and type(value) is not simdjson.Array:
            return
        text: Any = value.mini  # bytes, unlike in its stub
        most = self._limits.json_bytes // _HELD_PART
        size = len(text)
        if self._held_bytes + size > most:
            charge(size * OBJECT_BYTE)
            size -= sum(found.end() - found.start() for found in STRING.finditer(text))
        self._held_bytes += size
        if self._held_bytes > most:
            raise TooLarge(
                f"{self._what} has more than {most} bytes in members other than tensor data, "
                f"not counting strings: at most 1/{_HELD_PART} of json_bytes is allowed",
                limit="json_bytes",
            )
        if b"{" not in text and text.count(b"[") + depth <= self._limits.json_depth:
            return  # no keys, and not deep: such as a shape
        member = b'{"parameters":%b}' % text if key == _PARAMETERS else b"[%b]" % text
        whole = b"[" * (depth - 1) + member + b"]" * (depth - 1)
        check_closely(whole, self._what, self._limits, lenient=self._is_lenient)


def read_leniently(view: memoryview, what: str, limits: MessageLimits) -> Document:
    """Read one JSON object as servers write it.

    That is: with keys that `parameters` repeats (Triton's ensembles), with NaN and Infinity as bare
    words (Triton), and with bytes that are not UTF-8 in its strings (Triton); these become lone
    surrogates, as with `surrogateescape`.

    Raises:
        MalformedMessage: It cannot be read like this either.
        TooLarge: A limit is exceeded.
    """
    try:
        return read_document(view, what, limits, lenient=True)
    except MalformedMessage as error:
        return _read_words(view, what, limits, error, NonfiniteWords.PYTHON, lenient=True)


def read_with_words(
    view: memoryview, what: str, limits: MessageLimits, words: NonfiniteWords
) -> Document:
    """Read one JSON object of a client, with words for NaN and infinities.

    Args:
        view: The whole text.
        what: Names the document in errors.
        limits: The limits of the document.
        words: The words that its server reads.

    Raises:
        MalformedMessage: It cannot be read like this either.
        TooLarge: A limit is exceeded.
    """
    try:
        return read_document(view, what, limits)
    except MalformedMessage as error:
        return _read_words(view, what, limits, error, words)


def _read_words(
    view: memoryview,
    what: str,
    limits: MessageLimits,
    error: MalformedMessage,
    words: NonfiniteWords,
    *,
    lenient: bool = False,
) -> Document:
    """Read with Python's parser what another one refused with *error*."""
    charge(view.nbytes * OBJECT_BYTE)
    reserve_objects(view)
    objects = _CheckedObjects(what, limits, lenient=lenient)
    try:
        text = str(view, "utf-8", "surrogateescape" if lenient else "strict")
        if words is not NonfiniteWords.PYTHON:
            text = with_python_words(text)
        members: dict[str, Any] = json.loads(
            text,
            object_pairs_hook=objects.read,
            parse_float=_finite if words is NonfiniteWords.RAPID else None,
        )
        objects.finish()
    except (ValueError, RecursionError):
        raise error from None
    if type(members) is not dict:
        raise error
    check_depth(members, what, limits)
    return Document(members, None, text)


def _nothing(_text: str) -> None:
    return None


def with_python_words(text: str) -> str:
    """Return a text of JSON with the words for NaN and infinities that Python's parser reads."""
    # The search in a long text keeps the interpreter's lock: only where there is a word.
    if "Inf" not in text and "-NaN" not in text:
        return text
    return _RAPID_WORD.sub(_python_word, text)


def _python_word(found: re.Match[str]) -> str:
    word = found[0]
    return word if word.startswith('"') else _PYTHON_WORDS[word]


def _finite(text: str) -> float:
    """Return a number of JSON. Raises ValueError where no double holds it."""
    value = float(text)
    if math.isinf(value):
        raise ValueError(text)
    return value


def _twice(what: str, keys: list[str]) -> str:
    seen: set[str] = set()
    for key in keys:
        if key in seen:
            return f"{what} has the key {key[:_SHOWN]!r} twice in one object"
        seen.add(key)
    return f"{what} has a key twice in one object"


def _opening(view: memoryview) -> str:
    if not view.nbytes:
        return "it is empty"
    return f"it begins with {bytes(view[:16])!r}"


def dump(document: Mapping[str, Any] | list[Any] | npt.NDArray[Any]) -> bytes:
    """Write a document; numpy arrays in it become flat or nested lists.

    FP32 values have their shortest text.  NaN and infinities become `null`.
    """
    # Not by keyword, which doubles the cost for a short text.
    return orjson.dumps(document, None, orjson.OPT_SERIALIZE_NUMPY)
