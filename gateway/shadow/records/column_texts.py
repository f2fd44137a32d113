"""The texts of JSON in a recorded call: parameters, place in a sequence, shapes, needs, details.

They may come from a hostile file, so each is checked. Calls repeat them, so the results of short
texts are kept; they must not be changed.
"""

import json
import math
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, Final, TypeVar

from msgspec import Struct, convert, field

from gateway.ir.context import CallSequence, Need, Parameter
from gateway.ir.text_tasks import TextTask

T = TypeVar("T")

_MAX_RANK: Final = 32
_MAX_ELEMENTS: Final = 1 << 40


def _keep_short(
    entries: int, longest: int = 1024
) -> Callable[[Callable[[str], T]], Callable[[str], T]]:
    """Keep the results of a parser for *entries* texts of at most *longest* characters."""

    def decorate(parse: Callable[[str], T]) -> Callable[[str], T]:
        keep = lru_cache(entries)(parse)

        @wraps(parse)
        def parsed(text: str) -> T:
            return keep(text) if len(text) <= longest else parse(text)

        return parsed

    return decorate


def parse_parameters(text: str | None) -> dict[str, Parameter]:
    """Return parameters, which the caller may change.

    Raises:
        ValueError: The text has another form.
    """
    if not text or text == "{}":
        return {}
    return convert(_integers_fit(json.loads(text)), dict[str, Parameter])


_parse_repeated_parameters: Final = _keep_short(256)(parse_parameters)


def check_parameters(text: str | None) -> None:
    """Check the form of parameters.

    Raises:
        ValueError: The text has another form.
    """
    if text and text != "{}":
        _parse_repeated_parameters(text)


@_keep_short(1024)
def parse_sequence(text: str) -> CallSequence:
    """Return the place of a call in its sequence.

    Raises:
        ValueError: The text has another form.
    """
    number, start, end = convert(json.loads(text), tuple[int | str, bool, bool])
    if not number or (isinstance(number, int) and not _fits(number)):
        raise ValueError(f"sequence {text[:80]} is invalid")
    return CallSequence(number, start, end)


@_keep_short(1024, longest=64)
def parse_shape(text: str) -> tuple[int, ...]:
    """Return a shape.

    Raises:
        ValueError: It is no shape, or has too many dimensions or elements.
    """
    shape = tuple(json.loads(text))
    if len(shape) > _MAX_RANK or not all(type(axis) is int and axis >= 0 for axis in shape):
        raise ValueError(f"shape {text[:80]} is invalid")
    if math.prod(shape) > _MAX_ELEMENTS:
        raise ValueError(f"shape {text[:80]} has too many elements")
    return shape


@lru_cache(64)
def parse_needs(text: str) -> frozenset[Need]:
    """Return what the codec of a caller needs.

    Raises:
        ValueError: The text has another form.
    """
    return frozenset(Need(each) for each in json.loads(text))


class _Details(Struct):
    """The form of `CallRow.details`."""

    id: str = ""
    priority: int = 0
    timeout_us: int | None = None
    batch_size: int | None = None
    outputs: list[tuple[str, int]] = field(default_factory=list)
    has_parameters: bool = False
    flat_members: dict[str, Parameter | list[Parameter]] = field(default_factory=dict)
    headers: list[tuple[str, str]] = field(default_factory=list)
    texts: TextTask | None = None


@_keep_short(256)
def parse_details(text: str) -> dict[str, Any]:
    """Return the details of a call.

    Raises:
        ValueError: The text has another form.
    """
    found: dict[str, Any] = _integers_fit(json.loads(text))
    convert(found, _Details)
    return found


def _integers_fit(found: Any) -> Any:
    """Return a JSON value whose members are checked: no integer has more than 64 bits."""
    for each in found.values() if isinstance(found, dict) else ():
        if isinstance(each, int) and not _fits(each):
            raise ValueError(f"{str(each)[:80]} has more than 64 bits")
    return found


def _fits(number: int) -> bool:
    return -(1 << 63) <= number < 1 << 64
