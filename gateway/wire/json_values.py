"""Reads JSON without tensors, with limits on its length and its depth."""

from codecs import BOM_UTF8
from typing import Any

import orjson

from gateway.ir.errors import MalformedMessage, TooLarge
from gateway.ir.limits import MessageLimits
from gateway.ir.work import OBJECT_BYTE, charge


def read_value(view: memoryview, what: str, limits: MessageLimits) -> Any:
    """Read any JSON value without tensors; of equal keys the last counts.

    Raises:
        MalformedMessage: It is not JSON.
        TooLarge: It is too long or too deep.
    """
    if view.nbytes > limits.json_bytes:
        raise TooLarge(
            f"{what} has {view.nbytes} bytes of JSON, at most {limits.json_bytes} are allowed",
            limit="json_bytes",
        )
    charge(view.nbytes * OBJECT_BYTE)
    try:
        value = orjson.loads(without_mark(view))
    except orjson.JSONDecodeError as error:
        raise MalformedMessage(f"{what} is not JSON: {error}") from error
    check_depth([value], what, limits)
    return value


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
