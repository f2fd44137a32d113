"""Checks requests that change a server: loading models, trace and log settings.

The servers behind the gateway fail on odd requests and open the files that these name.  So names
and values are restricted to those that exist, and clients cannot choose files.

Source: Triton model repository, trace and logging extensions; docs/protocols/open-inference.md,
"14. Models, statistics and settings".
"""

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any

from gateway.ir.calls import LoadParameters, LogSettings, TraceSettings
from gateway.ir.errors import InvalidRequest, MalformedMessage, Unsupported
from gateway.ir.limits import MessageLimits, check_count, check_name
from gateway.wire.errors import clip
from gateway.wire.json.values import read_value

CONFIG = "config"
FILE = "file:"
UNLOAD_DEPENDENTS = "unload_dependents"

# A path below the model's folder; no segment of it begins with a dot.
_FILE = re.compile(r"file:[A-Za-z0-9_][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_][A-Za-z0-9_.-]*){0,3}")
_OF_FILES = frozenset({"log_file", "trace_file"})
_UINT32_MAX = (1 << 32) - 1
_INT64 = 1 << 63
_SHOWN = 64


def read_load(found: Mapping[str, Any], limits: MessageLimits) -> LoadParameters:
    """Return the parameters of a request to load a model.

    Args:
        found: As received; contents of files are bytes, or base64 where they are text.
        limits: On their number and names.

    Raises:
        InvalidRequest: A name, a value or the path of a file is not allowed.
        TooLarge: There are too many, or a name is too long.
    """
    check_count("parameters", len(found), limits.parameters, "parameters")
    return {key: _parameter(key, value, limits) for key, value in found.items()}


def written_load(parameters: LoadParameters) -> dict[str, Any]:
    """Return load parameters for JSON: bytes in base64."""
    return {
        key: base64.b64encode(value).decode() if isinstance(value, bytes) else value
        for key, value in parameters.items()
    }


def read_unload(found: Mapping[str, Any], limits: MessageLimits) -> bool:
    """Return whether to unload a model's dependents too.

    Raises:
        InvalidRequest: Another parameter is present, or the value is not a boolean.
        TooLarge: There are too many.
    """
    check_count("parameters", len(found), limits.parameters, "parameters")
    for key, value in found.items():
        if key != UNLOAD_DEPENDENTS or not isinstance(value, bool):
            raise InvalidRequest(
                f"parameter {clip(key, _SHOWN)!r} of an unload request: "
                f"expected only {UNLOAD_DEPENDENTS!r}, true or false"
            )
    return bool(found.get(UNLOAD_DEPENDENTS))


def read_trace(found: Mapping[str, Any], limits: MessageLimits) -> TraceSettings:
    """Return changes of trace settings; null or an empty list clears one.

    Raises:
        InvalidRequest: A name or value is not allowed.
        TooLarge: There are too many, or one is too long.
        Unsupported: It would choose a file on the server.
    """
    _check_settings("trace", found, limits)
    return {key: _texts(key, value, limits) for key, value in found.items()}


def read_log(found: Mapping[str, Any], limits: MessageLimits) -> LogSettings:
    """Return changes of log settings.

    Raises:
        InvalidRequest: A name or value is not allowed.
        TooLarge: There are too many, or one is too long.
        Unsupported: It would choose a file on the server.
    """
    _check_settings("log", found, limits)
    for key, value in found.items():
        if isinstance(value, str):
            check_name(f"log setting {key!r}", value, limits.name_bytes, "name_bytes")
        elif not isinstance(value, int) or not 0 <= value <= _UINT32_MAX:
            raise InvalidRequest(
                f"log setting {key!r} is {clip(repr(value), _SHOWN)}: expected true or false, "
                "a number of 32 bits or a string"
            )
    return found


def _parameter(key: str, value: Any, limits: MessageLimits) -> bool | int | str | bytes:
    check_name("parameter name", key, limits.name_bytes, "name_bytes")
    if key.startswith(FILE):
        return _contents(key, value)
    if key == CONFIG:
        _check_config(value, limits)
    if isinstance(value, bool | str) or (type(value) is int and -_INT64 <= value < _INT64):
        accepted: bool | int | str = value
        return accepted
    raise InvalidRequest(
        f"parameter {key!r} is {clip(repr(value), _SHOWN)}: "
        "expected true or false, a 64-bit integer or a string"
    )


def _contents(key: str, value: Any) -> bytes:
    if not _FILE.fullmatch(key):
        raise InvalidRequest(
            f"parameter {clip(key, _SHOWN)!r} is not a path of a file in the model's folder, "
            "such as 'file:1/model.onnx'"
        )
    if isinstance(value, bytes):
        return value
    try:
        return base64.b64decode(value, validate=True)
    except (TypeError, ValueError, binascii.Error) as error:
        raise InvalidRequest(f"parameter {clip(key, _SHOWN)!r} is not base64: {error}") from error


def _check_config(value: Any, limits: MessageLimits) -> None:
    try:
        data = value.encode()
    except (AttributeError, UnicodeEncodeError):
        data = b""
    document = read_value(memoryview(data), "the configuration", limits)
    if type(document) is not dict:
        raise MalformedMessage("the configuration is JSON, but not an object")


def _check_settings(kind: str, found: Mapping[str, Any], limits: MessageLimits) -> None:
    check_count("settings", len(found), limits.parameters, "parameters")
    for key in found:
        check_name(f"name of a {kind} setting", key, limits.name_bytes, "name_bytes")
        if key in _OF_FILES:
            raise Unsupported(f"{kind} setting {key!r} names a file, which clients cannot change")


def _texts(key: str, value: Any, limits: MessageLimits) -> tuple[str, ...]:
    listed = [] if value is None else value if isinstance(value, list) else [value]
    check_count(f"values of trace setting {key!r}", len(listed), limits.parameters, "parameters")
    for text in listed:
        if not isinstance(text, str):
            raise InvalidRequest(
                f"trace setting {key!r} is {clip(repr(text), _SHOWN)}: expected strings or null"
            )
        check_name(f"trace setting {key!r}", text, limits.name_bytes, "name_bytes")
    return tuple(listed)
