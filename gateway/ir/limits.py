"""The limits on messages, and the checks that every codec shares.

The attribute name of a limit is also its YAML key, the label of its counter and its name in errors.
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gateway.ir.errors import InvalidRequest, InvalidTensor, TooLarge
from gateway.ir.tensors.datatypes import Datatype

_MIB = 1 << 20
# The largest array of 8-byte elements that numpy can address.
_MAX_ARRAY_ELEMENTS = (1 << 60) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageLimits:
    """Limits of one message; sizes in bytes."""

    message_bytes: int = 64 * _MIB
    json_bytes: int = 16 * _MIB
    json_depth: int = 64
    json_keys: int = 10_000
    tensors: int = 2_048
    outputs: int = 2_048
    rank: int = 32
    dim: int = 1 << 40
    elements: int = (1 << 31) - 1
    bytes_elements: int = 1_000_000
    bytes_element_size: int = 16 * _MIB
    classes: int = 1000
    json_strings: int = 100_000
    json_numbers: int | None = None
    request_bytes: int | None = None
    bytes_rectangle: int = 64 * _MIB
    model_name_bytes: int = 255
    name_bytes: int = 1024
    parameters: int = 64
    error_text_bytes: int = 1024


DEFAULT_LIMITS = MessageLimits()

DOT_SEGMENTS = frozenset({".", ".."})
"""Path segments with a special meaning (RFC 3986, 3.3)."""

# Prefixes of the kinds of names that become path segments.
_IN_PATHS = ("model", "version", "region")
_FOLDER_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
_SHOWN = 64
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


MANAGEMENT_BYTES: Final = 1 << 20
"""Of a message without tensors and files: the protobuf library takes 20 ms at most for it."""


def check_name(kind: str, name: str, limit_bytes: int, limit: str) -> None:
    """Reject a name that is too long or contains control characters or lone surrogates.

    The names of models, versions and regions are path segments, so they must not be "." or "..".

    Raises:
        TooLarge: The name has more than *limit_bytes* bytes of UTF-8.
        InvalidRequest: The name contains a character that may break a URL, a header or a log, or
            is a dot segment.
    """
    if name.isascii() and name.isprintable():
        size = len(name)
    else:
        found = _CONTROL.search(name)
        if found is not None:
            raise InvalidRequest(
                f"{kind} has the character U+{ord(found.group()):04X} at position "
                f"{found.start()}: control characters and lone surrogates are not allowed"
            )
        size = len(name.encode())
    if size > limit_bytes:
        text = f"{kind} has {size} bytes, at most {limit_bytes} are allowed ({limit})"
        raise TooLarge(text, limit=limit)
    if name in DOT_SEGMENTS and kind.startswith(_IN_PATHS):
        raise InvalidRequest(
            f"{kind} is {name!r}, which is a dot segment of a path; expected another name"
        )


def check_management_size(method: str, size: int) -> None:
    """Refuse a long message without tensors and files: reading it would block the event loop.

    Raises:
        TooLarge: *size* is above `MANAGEMENT_BYTES`.
    """
    if size > MANAGEMENT_BYTES:
        raise TooLarge(
            f"message of {size} bytes to {method}: at most {MANAGEMENT_BYTES} bytes are read "
            "without tensors or files"
        )


def is_blank(name: str) -> bool:
    """Return whether a name shows nothing: it has but spaces, controls and invisible characters."""
    return not any(each.isprintable() and not each.isspace() for each in name)


def names_in(values: Iterable[Any]) -> tuple[str, ...]:
    """Return those of *values* that are names: texts that are not blank."""
    return tuple(each for each in values if isinstance(each, str) and not is_blank(each))


def is_usable_name(kind: str, name: str, limit_bytes: int) -> bool:
    """Return whether `check_name` accepts a name, without which a reply can be read as well."""
    try:
        check_name(kind, name, limit_bytes, kind)
    except (InvalidRequest, TooLarge):
        return False
    return True


def check_folder_name(name: str) -> None:
    """Reject loading or unloading a model whose name is not a plain directory name.

    Raises:
        InvalidRequest: The name has characters other than ASCII letters, digits, ".", "_" and "-",
            or starts with a dot.
    """
    if not _FOLDER_NAME.fullmatch(name):
        raise InvalidRequest(
            f"model name {name[:_SHOWN]!r} cannot be loaded or unloaded: expected letters, digits, "
            "'.', '_' and '-', and no dot at the beginning"
        )


def check_shape(
    name: str, datatype: Datatype | None, shape: tuple[int, ...], limits: MessageLimits
) -> int:
    """Check a shape received on the wire and return its number of elements.

    Raises:
        InvalidTensor: A dimension is negative.
        TooLarge: Rank, a dimension, the number of elements or their bytes exceed a limit; or the
            product of the non-zero dimensions of an empty tensor does.
    """
    if len(shape) > limits.rank:
        raise TooLarge(
            f"tensor {name!r} has {len(shape)} dimensions, at most {limits.rank} are allowed",
            limit="rank",
        )
    for dim in shape:
        if dim < 0:
            raise InvalidTensor(
                f"tensor {name!r} has shape {list(shape)}: dimensions must not be negative"
            )
        if dim > limits.dim:
            raise TooLarge(
                f"tensor {name!r} has a dimension of {dim}, at most {limits.dim} is allowed",
                limit="dim",
            )
    count = math.prod(shape)
    if not count and math.prod(filter(None, shape)) > _MAX_ARRAY_ELEMENTS:
        # numpy cannot represent such a shape, not even as an empty array.
        raise TooLarge(
            f"empty tensor {name!r} has shape {list(shape)}: the product of its non-zero "
            f"dimensions exceeds {_MAX_ARRAY_ELEMENTS}",
            limit="dim",
        )
    maximum, limit = limits.elements, "elements"
    if datatype is Datatype.BYTES:
        maximum, limit = min(maximum, limits.bytes_elements), "bytes_elements"
    if count > maximum:
        raise TooLarge(
            f"tensor {name!r} of shape {list(shape)} has {count} elements, "
            f"at most {maximum} are allowed",
            limit=limit,
        )
    if datatype is not None and count * datatype.size_bytes > limits.message_bytes:
        raise TooLarge(
            f"tensor {name!r} of shape {list(shape)} has {count * datatype.size_bytes} bytes, "
            f"at most {limits.message_bytes} are allowed",
            limit="message_bytes",
        )
    return count


def check_rank(dims: Sequence[int], limits: MessageLimits) -> None:
    """Refuse a shape, as soon as its reader has found too many dimensions.

    Raises:
        TooLarge: There are more than `rank`.
    """
    if len(dims) > limits.rank:
        raise TooLarge(
            f"a shape has more than {limits.rank} dimensions, the most that are allowed",
            limit="rank",
        )


def check_unique(kind: str, names: Sequence[str]) -> None:
    """Refuse names of which one occurs twice; *kind* says what has them.

    Raises:
        InvalidTensor: One does.
    """
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidTensor(f"{kind} {twice!r} occurs {names.count(twice)} times: expected once")


def check_element_size(kind: str, name: str, longest: int, limits: MessageLimits) -> None:
    """Refuse a BYTES tensor whose longest element is too long.

    Args:
        kind: "input" or "tensor".
        name: Its name.
        longest: Bytes of its longest element.
        limits: The limit is `bytes_element_size`.

    Raises:
        TooLarge: The element is longer.
    """
    if longest > limits.bytes_element_size:
        raise TooLarge(
            f"{kind} {name!r} has an element of {longest} bytes, "
            f"at most {limits.bytes_element_size} are allowed",
            limit="bytes_element_size",
        )


def check_bytes_elements(count: int, limits: MessageLimits) -> None:
    """Reject too many BYTES elements, or nested lists, in one message.

    Raises:
        TooLarge: All tensors together have more than `bytes_elements`.
    """
    if count > limits.bytes_elements:
        raise TooLarge(
            f"the message has too many BYTES elements or nested lists: {count} in all tensors "
            f"together; at most {limits.bytes_elements} are allowed (bytes_elements)",
            limit="bytes_elements",
        )


def check_classes(output: str, classes: int, limits: MessageLimits) -> None:
    """Reject a request for too many classes of an output.

    Raises:
        TooLarge: It asks for more than `classes`.
    """
    if classes > limits.classes:
        raise TooLarge(
            f"output {output!r} is requested with {classes} classes; at most {limits.classes} are "
            "allowed (classes)",
            limit="classes",
        )


def check_count(kind: str, found: int, maximum: int, limit: str) -> None:
    """Reject more than *maximum* of something.

    Raises:
        TooLarge: *found* exceeds *maximum*.
    """
    if found > maximum:
        raise TooLarge(f"{found} {kind}, at most {maximum} are allowed ({limit})", limit=limit)
