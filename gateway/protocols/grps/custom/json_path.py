"""Paths in JSON documents, and templates that are filled from tensors.

A path has members by name and elements by number: `messages[-1].content`.  A template is a JSON
value.  A text in it that is only `${output}` becomes that output, nested as its shape, and
`${output[0]}` an element of it; inside a longer text the element is formatted.
"""

import base64
import re
from collections.abc import Mapping
from math import prod
from typing import Any, Final

import numpy as np

from gateway.ir.tensors.datatypes import Datatype, fp32_of_bf16
from gateway.ir.tensors.tensor import Tensor, as_items, as_numpy
from gateway.protocols.grps.errors import Unconvertible
from gateway.protocols.grps.json.elements import listed_array

Step = str | int

_PLACE: Final = re.compile(r"([^.\[\]]+)((?:\[-?\d{1,6}\])*)")
_INDEX: Final = re.compile(r"\[(-?\d{1,6})\]")
_FILL: Final = re.compile(r"\$\{([^{}\[\]]+)((?:\[-?\d{1,6}\])*)\}")

MISSING: Final = object()
"""Returned by `lookup` when a document has no value at a path."""


def read_place(text: str) -> tuple[Step, ...]:
    """Return the steps of a path.

    Raises:
        ValueError: The text is not a path.
    """
    steps: list[Step] = []
    for part in text.split("."):
        match = _PLACE.fullmatch(part)
        if match is None:
            raise ValueError(f"{text!r} is not a path in JSON, such as 'messages[-1].content'")
        steps.append(match.group(1))
        steps += [int(index) for index in _INDEX.findall(match.group(2))]
    return tuple(steps)


def lookup(document: Any, place: tuple[Step, ...]) -> Any:
    """Return the value at *place*; `MISSING` when there is none."""
    for step in place:
        if isinstance(step, str):
            if not isinstance(document, Mapping) or step not in document:
                return MISSING
            document = document[step]
        else:
            if not isinstance(document, list) or not -len(document) <= step < len(document):
                return MISSING
            document = document[step]
    return document


def names_in(template: Any) -> set[str]:
    """Return the names in a template."""
    if isinstance(template, str):
        return {match.group(1) for match in _FILL.finditer(template)}
    if isinstance(template, Mapping):
        return {name for value in template.values() for name in names_in(value)}
    if isinstance(template, list):
        return {name for value in template for name in names_in(value)}
    return set()


def render(template: Any, values: Mapping[str, Any]) -> Any:
    """Return *template* with names replaced by *values*.

    Raises:
        Unconvertible: A name or element does not exist.
    """
    if isinstance(template, str):
        whole = _FILL.fullmatch(template)
        if whole is not None:
            return _element(whole, values)
        return _FILL.sub(lambda match: _text(_element(match, values)), template)
    if isinstance(template, Mapping):
        return {key: render(value, values) for key, value in template.items()}
    if isinstance(template, list):
        return [render(value, values) for value in template]
    return template


def json_value(tensor: Tensor) -> Any:
    """Return a tensor as JSON values nested as its shape; bytes that are not UTF-8 as base64.

    Raises:
        Unconvertible: It has no datatype or shape, or its elements do not fit the shape.
    """
    if tensor.datatype is None or tensor.shape is None:
        raise Unconvertible(f"output {tensor.name!r} has no datatype or shape: JSON needs both")
    if tensor.datatype is Datatype.BYTES:
        items = as_items(tensor)
        if len(items) != prod(tensor.shape):
            raise Unconvertible(
                f"output {tensor.name!r} has {len(items)} elements, and shape {list(tensor.shape)}"
            )
        texts = np.empty(len(items), dtype=object)
        texts[:] = [_string(item) for item in items]
        return listed_array(texts.reshape(tensor.shape))
    array = as_numpy(tensor)
    if tensor.datatype is Datatype.BF16:
        array = fp32_of_bf16(array)
    return listed_array(array)


def _string(item: bytes | memoryview) -> str:
    try:
        return str(item, "utf-8")
    except UnicodeDecodeError:
        return base64.b64encode(item).decode()


def _element(match: re.Match[str], values: Mapping[str, Any]) -> Any:
    name = match.group(1)
    if name not in values:
        there = ", ".join(map(repr, values)) or "none"
        raise Unconvertible(f"reply has no output {name!r}: it has {there}")
    found = lookup(values[name], tuple([int(index) for index in _INDEX.findall(match.group(2))]))
    if found is MISSING:
        raise Unconvertible(f"output {name!r} has no element {match.group(2)}")
    return found


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else str(value)
