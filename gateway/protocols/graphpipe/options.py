"""GraphPipe's options: what a listener or an upstream may set, each checked."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gateway.ir.context import ModelRef

BODY, STATUS = "body", "status"
METADATA, CONTROL = "metadata", "control"
_MOST_DROPPED: Final = 16
# The configuration's loader keeps every scalar as the text it is written in.
_FLAGS: Final = {"true": True, "false": False}
_NUMBER: Final = re.compile("[0-9]{1,4}")


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphPipeOptions:
    """The options, typed.

    Attributes:
        default_model: Listener: the model of a URL that names none, and of a socket; "name" or
            "name/version".
        errors: Listener: inference errors as answers of status 200 (`body`, as the specification
            has it) or by HTTP status and text (`status`, as the Go server).
        lenient_names: Listener: take fewer or more input names than tensors, as the Go server.
        path: Upstream: where every message is posted; "" for /graphpipe/<model>[/<version>].
        config: Upstream: sent as config in every request; None for the caller's own.
        inputs: Upstream: its inputs, in its order; empty when not configured.
        outputs: Upstream: its outputs, in its order, all of which are asked for; empty likewise.
        drop_outputs: Upstream: tensors before the outputs that are none (ForestFlow sends one).
        health: Upstream: `metadata` asks for metadata, `control` the Go server's own paths.
    """

    default_model: ModelRef | None = None
    errors: str = BODY
    lenient_names: bool = False
    path: str = ""
    config: str | None = None
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    drop_outputs: int = 0
    health: str = METADATA


def check_options(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return *options* unchanged.

    Raises:
        ValueError: A key or value is not one of ours.
    """
    settings_of(options)
    return options


def settings_of(options: Mapping[str, Any]) -> GraphPipeOptions:
    """Return *options* as settings.

    Raises:
        ValueError: A key or value is not one of ours.
    """
    for key in options:
        if key not in _READERS:
            raise ValueError(f"graphpipe has no option {key!r}, only {', '.join(_READERS)}")
    return GraphPipeOptions(**{key: _READERS[key](key, value) for key, value in options.items()})


def _one_of(*known: str) -> Callable[[str, Any], str]:
    def read(key: str, value: Any) -> str:
        if value not in known:
            raise ValueError(f"{key} {value!r} is none of {', '.join(known)}")
        return str(value)

    return read


def _model(key: str, value: Any) -> ModelRef:
    name, _, version = _text(key, value).partition("/")
    if not name:
        raise ValueError(f"{key} {value!r} names no model")
    return ModelRef(name, version)


def _path(key: str, value: Any) -> str:
    path = _text(key, value)
    if path and not (path.startswith("/") and path.isascii() and path.isprintable()):
        raise ValueError(f"{key} {value!r} is not a path: it begins with '/' and is ASCII")
    if {"?", "#", " "} & set(path):
        raise ValueError(f"{key} {value!r} has more than a path in it")
    return path


def _text(key: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{key} {value!r} is not a text")  # noqa: TRY004  # the contract's error
    return value


def _flag(key: str, value: Any) -> bool:
    value = _FLAGS.get(value, value) if isinstance(value, str) else value
    if not isinstance(value, bool):
        raise ValueError(f"{key} {value!r} is neither true nor false")  # noqa: TRY004
    return value


def _names(key: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(
        isinstance(name, str) and name for name in value
    ):
        raise ValueError(f"{key} {value!r} is not a list of names")
    if len(set(value)) < len(value):
        raise ValueError(f"{key} {value!r} has a name twice")
    return tuple(value)


def _count(key: str, value: Any) -> int:
    value = int(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else value
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST_DROPPED:
        raise ValueError(f"{key} {value!r} is not a number from 0 to {_MOST_DROPPED}")
    return value


_READERS: Final[Mapping[str, Callable[[str, Any], Any]]] = {
    "default_model": _model,
    "errors": _one_of(BODY, STATUS),
    "lenient_names": _flag,
    "path": _path,
    "config": _text,
    "inputs": _names,
    "outputs": _names,
    "drop_outputs": _count,
    "health": _one_of(METADATA, CONTROL),
}
