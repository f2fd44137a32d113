"""Reads JSON into Python objects, with limits on its length, its depth and what it becomes."""

import json
from codecs import BOM_UTF8
from contextlib import suppress
from typing import Any, Final

import numpy as np
import orjson
import simdjson

from gateway.ir.errors import MalformedMessage, TooLarge
from gateway.ir.limits import MessageLimits
from gateway.ir.values.json_objects import STRING, reserve_objects
from gateway.ir.work import OBJECT_BYTE, PARSED_BYTE, charge
from gateway.wire.http import Buffer

_ERROR_BYTES: Final = 1 << 16
# Longer texts of lists are parsed without Python objects.
_LONG_BYTES: Final = 8192
_FEW_QUOTES: Final = 64
_WORDS: Final = (b"NaN", b"Infinity")
_NO_BRACKETS: Final = bytes(each for each in range(256) if each not in b"[]{}")
_OPENING: Final = ord("[") & 0xF


def read_value(view: memoryview, what: str, limits: MessageLimits) -> Any:
    """Read any JSON value without tensors; of equal keys the last counts.

    Raises:
        MalformedMessage: It is not JSON.
        TooLarge: It is too long or too deep.
    """
    check_json_size(view, what, limits)
    charge(view.nbytes * OBJECT_BYTE)
    value = load_json(without_mark(view), what)
    check_depth([value], what, limits)
    return value


def check_json_size(view: memoryview, what: str, limits: MessageLimits) -> None:
    """Refuse a text of JSON that is too long; *what* names it.

    Raises:
        TooLarge: It has more than `json_bytes`.
    """
    if view.nbytes > limits.json_bytes:
        raise TooLarge(
            f"{what} has {view.nbytes} bytes of JSON, at most {limits.json_bytes} are allowed",
            limit="json_bytes",
        )


def check_same_to_all(
    view: memoryview, what: str, limits: MessageLimits, *, has_words: bool = False
) -> None:
    """Check that a text of JSON says the same to every reader of the standard.

    Args:
        view: The text.
        what: Names it in errors.
        limits: The limits of JSON.
        has_words: NaN, Infinity and -Infinity are read, as Python does.

    Raises:
        MalformedMessage: It is not JSON in UTF-8, or an object has a key twice.
        TooLarge: It is too long, too deep, or its objects would take too much memory.
    """
    if view.nbytes > limits.json_bytes:
        raise TooLarge(f"{what} has {view.nbytes} bytes of JSON", limit="json_bytes")
    text = bytes(view)
    words = has_words and any(word in text for word in _WORDS)
    # The only object is the outermost value.
    is_flat = text.count(b"{") == text.lstrip()[:1].count(b"{") and text.count(b'"') <= _FEW_QUOTES
    if len(text) >= _LONG_BYTES and is_flat and not words:
        _check_flat(text, what, limits)
        return
    charge(len(text) * OBJECT_BYTE)
    is_checked = False
    try:
        value = load_json(text, what)
        check_depth([value], what, limits)
        is_checked = text.count(b":") == count_keys(value)
    except MalformedMessage:
        if not words:
            raise
    if not is_checked:
        try:
            check_depth([json.loads(text.decode(), object_pairs_hook=_each_once)], what, limits)
        except (ValueError, RecursionError) as error:
            raise MalformedMessage(f"{what} is not JSON: {error}") from error


def _check_flat(text: bytes, what: str, limits: MessageLimits) -> None:
    """Check a long text with at most one object, whose lists become no Python objects."""
    charge(len(text) * PARSED_BYTE)
    brackets = np.frombuffer(STRING.sub(b"", text).translate(None, _NO_BRACKETS), np.uint8)
    steps = np.where((brackets & 0xF) == _OPENING, np.int8(1), np.int8(-1))
    if steps.cumsum(dtype=np.int64).max(initial=0) > limits.json_depth:
        raise too_deep(what, limits)
    try:
        found: Any = simdjson.Parser().parse(text)
    except (ValueError, RuntimeError) as error:
        raise MalformedMessage(f"{what} is not JSON: {error}") from error
    keys = list(found) if type(found) is simdjson.Object else []
    if len(set(keys)) != len(keys):
        raise MalformedMessage(f"{what} has a key twice")


def count_keys(value: Any) -> int:
    """Return the number of keys of all objects in a value."""
    if type(value) is dict:
        return len(value) + sum(map(count_keys, value.values()))
    if type(value) is list:
        kinds = set(map(type, value))
        if dict in kinds or list in kinds:
            return sum(map(count_keys, value))
    return 0


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key occurs twice in one object")
    return found


def load_json(text: Buffer, what: str) -> Any:
    """Return a text as Python objects; the caller checks its length and its depth.

    Raises:
        MalformedMessage: It is not JSON.
        LongWork: Memory must be reserved for the objects.
    """
    # orjson alone refuses a byte order mark, reads integers beyond 64 bits, and places errors.
    if reserve_objects(text) and bytes(text[: len(BOM_UTF8)]) != BOM_UTF8:
        with suppress(ValueError, RuntimeError):
            return _in_steps(simdjson.Parser().parse(memoryview(text)))
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise MalformedMessage(f"{what} is not JSON: {error}") from error


def plain_value(value: Any) -> Any:
    """Return a value of simdjson as Python objects, and any other one as it is.

    Raises:
        LongWork: Memory must be reserved for them.
    """
    if type(value) not in (simdjson.Array, simdjson.Object):
        return value
    text: Any = value.mini  # bytes, unlike in its stub
    if reserve_objects(text, is_parsed=True):
        with suppress(RecursionError):
            return _in_steps(value)
    return value.as_list() if type(value) is simdjson.Array else value.as_dict()


def _in_steps(value: Any) -> Any:
    """Build Python objects with the lock of the interpreter given up now and then.

    A parser holds it for all of them: 0.5 s for an object of 1,000,000 keys.

    Raises:
        RecursionError: It is nested some hundred levels deep.
    """
    if type(value) is simdjson.Array:
        return [_in_steps(each) for each in value]
    if type(value) is simdjson.Object:
        return {key: _in_steps(each) for key, each in value.items()}
    return value


def short_document(view: memoryview) -> dict[str, Any]:
    """Return the members of a text such as an error; none where it is long, or no object."""
    if view.nbytes > _ERROR_BYTES:
        return {}
    try:
        found = orjson.loads(view)
    except orjson.JSONDecodeError:
        return {}
    return found if type(found) is dict else {}


def check_depth(document: Any, what: str, limits: MessageLimits) -> None:
    """Refuse a document of more than `json_depth` levels.

    Raises:
        TooLarge: It has more.
    """
    level = [document]
    for _ in range(limits.json_depth):
        level = [
            child
            for node in level
            for child in (node.values() if type(node) is dict else node)
            if type(child) is dict or type(child) is list
        ]
        if not level:
            return
    raise too_deep(what, limits)


def without_mark(view: memoryview) -> memoryview:
    """Return a text without the UTF-8 byte order mark that editors and PowerShell put before it."""
    return view[len(BOM_UTF8) :] if bytes(view[: len(BOM_UTF8)]) == BOM_UTF8 else view


def too_deep(what: str, limits: MessageLimits) -> TooLarge:
    """Return the error for a document of more than `json_depth` levels."""
    return TooLarge(
        f"{what} is nested too deep, at most {limits.json_depth} levels are allowed",
        limit="json_depth",
    )
