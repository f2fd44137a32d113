"""The fields of a model's configuration that a client may set with `model_config: limited`.

A complete configuration is code: it names backends, files and environments that the server runs
(CVE-2025-23316).  These fields are numbers and choices, which determine how often a model runs.

Source: Triton model configuration; docs/protocols/open-inference.md, "14. Models, statistics and
settings".
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from gateway.ir.errors import InvalidRequest
from gateway.ir.limits import MessageLimits
from gateway.protocols.oip.json.parse import dump
from gateway.wire.errors import clip
from gateway.wire.json.values import read_value

MAX_INSTANCES: Final = 16
_MAX_BATCH_SIZE: Final = 65_536
_MAX_SIZES: Final = 64
_MAX_PRIORITIES: Final = 64
_MAX_MICROSECONDS: Final = 60_000_000
_MAX_VERSION: Final = (1 << 31) - 1
_SHOWN: Final = 64

_Check = Callable[[str, Any], None]


def limited_config(text: str, limits: MessageLimits) -> str:
    """Return a client's configuration, rebuilt from the allowed fields.

    Raises:
        InvalidRequest: It has another field, or a value that is not allowed.
        MalformedMessage, TooLarge: It is not JSON within *limits*.
    """
    document = read_value(memoryview(text.encode()), "the configuration", limits)
    _CONFIG("", document)
    return dump(document).decode()


def _is_number(value: Any, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most


def _number(least: int, most: int) -> _Check:
    def check(path: str, value: Any) -> None:
        if not _is_number(value, least, most):
            raise _wrong(path, value, f"an integer from {least} to {most}")

    return check


def _numbers(most: int, path: str, value: Any) -> None:
    if (
        type(value) is not list
        or len(value) > _MAX_SIZES
        or not all(_is_number(each, 1, most) for each in value)
    ):
        raise _wrong(path, value, f"at most {_MAX_SIZES} integers from 1 to {most}")


def _flag(path: str, value: Any) -> None:
    if type(value) is not bool:
        raise _wrong(path, value, "true or false")


def _members(checks: Mapping[str, _Check], path: str, value: Any) -> None:
    if type(value) is not dict:
        raise _wrong(path or "the configuration", value, "an object")
    others = [f"{path}.{key}".lstrip(".") for key in value if key not in checks]
    if others:
        listed = ", ".join(clip(repr(key), _SHOWN) for key in others[:_MAX_SIZES])
        raise InvalidRequest(
            f"the configuration has fields that clients cannot set: {listed}; allowed are "
            f"{', '.join(checks)} (option model_config)"
        )
    for key, member in value.items():
        checks[key](f"{path}.{key}".lstrip("."), member)


def _groups(path: str, value: Any) -> None:
    if type(value) is not list or len(value) != 1:
        raise _wrong(path, value, "a list of one object")
    _members({"count": _number(1, MAX_INSTANCES)}, path, value[0])


def _wrong(path: str, value: Any, expected: str) -> InvalidRequest:
    found = clip(repr(value), _SHOWN)
    return InvalidRequest(f"field {path!r} of the configuration is {found}: expected {expected}")


_CONFIG: Final[_Check] = partial(
    _members,
    {
        "max_batch_size": _number(0, _MAX_BATCH_SIZE),
        "dynamic_batching": partial(
            _members,
            {
                "preferred_batch_size": partial(_numbers, _MAX_BATCH_SIZE),
                "max_queue_delay_microseconds": _number(0, _MAX_MICROSECONDS),
                "preserve_ordering": _flag,
                "priority_levels": _number(0, _MAX_PRIORITIES),
                "default_priority_level": _number(0, _MAX_PRIORITIES),
            },
        ),
        "version_policy": partial(
            _members,
            {
                "latest": partial(_members, {"num_versions": _number(1, _MAX_SIZES)}),
                "all": partial(_members, {}),
                "specific": partial(_members, {"versions": partial(_numbers, _MAX_VERSION)}),
            },
        ),
        "instance_group": _groups,
    },
)
