"""Reads JSON documents of grps into dictionaries, with limits.

The limits are on size, depth and number of keys; `message.py` has the meaning of the members.
Equal keys are refused: orjson keeps one of them silently, and another parser may keep the other.
"""

import json
import re
from typing import Any, Final

from gateway.ir.errors import MalformedMessage, TooLarge
from gateway.ir.limits import MessageLimits, check_bytes_elements, check_count
from gateway.ir.values.json_objects import reserve_objects
from gateway.ir.work import JSON_ELEMENT, LIST, OBJECT_BYTE, charge
from gateway.wire.json.values import check_json_size, load_json

_SHOWN: Final = 64
# Longer than any list of tensors.
_LONG: Final = 1024
_MANY_BYTES: Final = 1 << 13
_NODES: Final = frozenset({dict, list})
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")


def read_document(view: memoryview, what: str, limits: MessageLimits) -> dict[str, Any]:
    """Read one JSON object.

    Args:
        view: The whole text.
        what: Names the document in errors.
        limits: `json_bytes`, `json_depth` and `json_keys` are enforced; `bytes_elements` on lists.

    Raises:
        MalformedMessage: It is not JSON, not an object, or an object has a key twice.
        TooLarge: A limit is exceeded.
    """
    check_json_size(view, what, limits)
    text = bytes(view)
    lists = text.count(b"[")
    check_bytes_elements(lists, limits)
    if len(text) > _MANY_BYTES:
        charge(len(text) * OBJECT_BYTE + lists * LIST, len(text) * JSON_ELEMENT + lists)
    document = load_json(text, what)
    if not isinstance(document, dict):
        raise MalformedMessage(f"{what} is not a JSON object")
    # With so few brackets it cannot be too deep, and long lists contain no lists.
    few = lists + text.count(b"{") <= limits.json_depth
    keys = _counted(document, what, limits, _LONG if few else None)
    # Each key has one colon outside of strings: as many colons as keys exclude duplicates.
    if text.count(b":") != keys:
        _check_closely(text, what, limits)
    return document


def read_leniently(view: memoryview, what: str, limits: MessageLimits) -> dict[str, Any]:
    """Read one JSON object as servers write it: with NaN and Infinity as bare words.

    Lone surrogates, which Python servers write too, become "?".

    Raises:
        MalformedMessage: It cannot be read like this either.
        TooLarge: A limit is exceeded.
    """
    try:
        return read_document(view, what, limits)
    except MalformedMessage as error:
        charge(view.nbytes * OBJECT_BYTE)
        reserve_objects(view)
        try:
            document = json.loads(bytes(view), object_pairs_hook=_once)
        except (ValueError, RecursionError):
            raise error from None
        if not isinstance(document, dict):
            raise
        _counted(document, what, limits, None)
        return _encodable(document) if _SURROGATE.search(view) else document


def _encodable(value: Any) -> Any:
    """Return *value* with text that UTF-8 can represent."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list):
        return [_encodable(each) for each in value]
    if isinstance(value, dict):
        return {_encodable(key): _encodable(each) for key, each in value.items()}
    return value


def _counted(document: dict[str, Any], what: str, limits: MessageLimits, long: int | None) -> int:
    """Check depth and numbers of keys, level by level; return the number of all keys.

    Lists of more than *long* elements are skipped, and their keys are not counted.
    """
    keys = 0
    level: list[Any] = [document]
    for _ in range(limits.json_depth):
        below: list[Any] = []
        for node in level:
            if type(node) is dict:
                keys += len(node)
                check_count(
                    f"keys in an object of {what}", len(node), limits.json_keys, "json_keys"
                )
                below += [one for one in node.values() if type(one) is dict or type(one) is list]
            elif (long is None or len(node) <= long) and not _NODES.isdisjoint(map(type, node)):
                below += [one for one in node if type(one) is dict or type(one) is list]
        if not below:
            return keys
        level = below
    raise TooLarge(
        f"{what} is nested too deep, at most {limits.json_depth} levels are allowed",
        limit="json_depth",
    )


def _check_closely(text: bytes, what: str, limits: MessageLimits) -> None:
    """Check the keys of every object in a text that another parser accepted."""

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        check_count(f"keys in an object of {what}", len(found), limits.json_keys, "json_keys")
        return _once(found)

    try:
        json.loads(text, object_pairs_hook=pairs, parse_int=_nothing, parse_float=_nothing)
    except _TwiceError as error:
        raise MalformedMessage(f"{what} has the key {error} twice in one object") from error
    except (ValueError, RecursionError) as error:
        raise MalformedMessage(f"{what} is not JSON: {error}") from error


class _TwiceError(ValueError):
    """A key occurs twice."""


def _once(found: list[tuple[str, Any]]) -> dict[str, Any]:
    kept = dict(found)
    if len(kept) != len(found):
        seen: set[str] = set()
        for key, _ in found:
            if key in seen:
                raise _TwiceError(repr(key[:_SHOWN]))
            seen.add(key)
    return kept


def _nothing(_text: str) -> None:
    return None


def has_one_spelling(value: Any) -> bool:
    """Return whether no object of a request has a member in two spellings.

    Readers take `str_data` and `strData` for one member, and a request must have the first one.
    """
    if type(value) is list:
        return all(has_one_spelling(each) for each in value if type(each) is dict)
    if type(value) is not dict:
        return True
    if not _CAMEL.isdisjoint(value):
        return False
    names = {key.replace("_", "").lower() for key in value}
    return len(names) == len(value) and all(map(has_one_spelling, value.values()))


_CAMEL: Final = frozenset({"strData", "binData"})
