"""The kinds of values in a configuration file: how each is read, and what editors are told."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, InstanceOf, StringConstraints, WithJsonSchema

from gateway.config.units import (
    Address,
    StreamAddress,
    Url,
    check_mode,
    parse_address,
    parse_duration,
    parse_size,
    parse_stream_address,
    parse_url,
    parse_workers,
)


def _parsed(parse: Any, kind: type) -> BeforeValidator:
    def convert(value: object) -> object:
        if isinstance(value, str):
            return parse(value)
        # None is for the field's own type to take or refuse.
        if value is None or type(value) is kind:
            return value
        raise ValueError("must be text on one line, not a mapping or a list")

    convert.__name__ = f"to_{kind.__name__}"
    return BeforeValidator(convert)


Duration = Annotated[
    float,
    _parsed(parse_duration, float),
    WithJsonSchema({"type": "string", "examples": ["250ms", "30s"]}),
]
Size = Annotated[
    int,
    _parsed(parse_size, int),
    WithJsonSchema({"type": ["string", "integer"], "examples": ["16MiB"]}),
]
ListenAddress = Annotated[
    InstanceOf[Address],
    _parsed(parse_address, Address),
    WithJsonSchema({"type": ["string", "integer"], "examples": ["127.0.0.1:8000"]}),
]
SocketAddress = Annotated[
    InstanceOf[StreamAddress],
    _parsed(parse_stream_address, StreamAddress),
    WithJsonSchema(
        {"type": ["string", "integer"], "examples": ["127.0.0.1:9000", "unix:/run/gateway.sock"]}
    ),
]
FileMode = Annotated[
    str,
    _parsed(check_mode, str),
    WithJsonSchema({"type": ["string", "integer"], "examples": ["0660"]}),
]
WorkerCount = Annotated[
    int,
    _parsed(parse_workers, int),
    WithJsonSchema({"type": ["string", "integer"], "examples": [2, "auto"]}),
]
UpstreamUrl = Annotated[
    InstanceOf[Url],
    _parsed(parse_url, Url),
    WithJsonSchema({"type": "string", "examples": ["oip+grpc://127.0.0.1:8001"]}),
]
Name = Annotated[
    str, StringConstraints(min_length=1, max_length=255, pattern=r"^[^\x00-\x1f\x7f]+$")
]
Text = Annotated[str, StringConstraints(max_length=1024)]


def _as_list(value: object) -> object:
    return value if value is None or isinstance(value, list | tuple) else [value]


# The loader keeps every scalar as text, so `version: 2` is "2": editors must not mark it.
_SCALAR = {"type": ["string", "number", "boolean"]}
Scalar = Annotated[Text, WithJsonSchema(_SCALAR)]
Names = Annotated[
    tuple[Text, ...],
    BeforeValidator(_as_list),
    WithJsonSchema({"anyOf": [_SCALAR, {"type": "array", "items": _SCALAR}]}),
]
