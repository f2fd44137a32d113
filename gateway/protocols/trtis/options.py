"""What can be set of TensorRT v1 in YAML, for a listener and for an upstream."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.wire.codec import Options

_VERSION = re.compile(r"(\d{1,6})\.(\d{1,6})(\.\d{1,6})?")
_SERVER_ID = re.compile(r"[\x21-\x7e]{1,128}")
_SCHEDULED = (1, 12)
_SNAKE_CASE = (1, 13)
_MOST = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class TrtisOptions:
    """The options with their defaults.

    Attributes:
        server_id: How a listener calls itself in every answer.
        server_version: The release a listener is like, or an upstream is of: 1.12 and later take
            priority and timeout in `NV-InferRequest`, 1.13 and later write JSON in snake_case.
        max_batch_size: Told of models that batch and do not say how much.
        version_zero: Model version 0 over gRPC, which real servers refuse: "refuse" or "latest".
        model_control: Load and unload are passed on.
        repository_index: The index of models is given.
    """

    server_id: str = "inference:0"
    server_version: str = "1.11.0"
    max_batch_size: int = 128
    version_zero: str = "refuse"
    model_control: bool = False
    repository_index: bool = False

    @property
    def sends_schedule(self) -> bool:
        """Whether the server takes priority and timeout in a text header."""
        return self._release >= _SCHEDULED

    @property
    def snake_case(self) -> bool:
        """Whether JSON keeps the fields' original names."""
        return self._release >= _SNAKE_CASE

    @property
    def _release(self) -> tuple[int, int]:
        major, minor = self.server_version.split(".")[:2]
        return int(major), int(minor)


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _among(*values: str) -> Callable[[Any], bool]:
    return lambda value: value in values


_CHECKS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "server_id": (
        lambda value: isinstance(value, str) and _SERVER_ID.fullmatch(value) is not None,
        "visible ASCII characters, 128 at most",
    ),
    "server_version": (
        lambda value: isinstance(value, str) and _VERSION.fullmatch(value) is not None,
        "a version such as 1.11.0, in quotes",
    ),
    "max_batch_size": (
        lambda value: type(value) is int and 1 <= value <= _MOST,
        f"a number from 1 to {_MOST}",
    ),
    "version_zero": (_among("refuse", "latest"), "refuse or latest"),
    "model_control": (_flag, "true or false"),
    "repository_index": (_flag, "true or false"),
}


def _read_flag(text: str) -> bool | str:
    return {"true": True, "false": False}.get(text, text)


def _read_number(text: str) -> int | str:
    return (
        int(text) if text.isascii() and text.isdecimal() and len(text) <= len(str(_MOST)) else text
    )


# In YAML every scalar is text.
_SCALARS: Mapping[str, Callable[[str], Any]] = {
    "max_batch_size": _read_number,
    "model_control": _read_flag,
    "repository_index": _read_flag,
}


def check_options(options: Options) -> Options:
    """Return *options*, checked.

    Raises:
        ValueError: A key or value is not one of ours.
    """
    checked = {}
    for key, given in options.items():
        if key not in _CHECKS:
            raise ValueError(f"trtis has no option {key!r}, only {', '.join(_CHECKS)}")
        value = _SCALARS.get(key, str)(given) if isinstance(given, str) else given
        allowed, needed = _CHECKS[key]
        if not allowed(value):
            raise ValueError(f"{key} is {given!r}, needed is {needed}")
        checked[key] = value
    return checked


def read_options(options: Options) -> TrtisOptions:
    """Return *options* as values.

    Raises:
        ValueError: A key or value is not one of ours.
    """
    return TrtisOptions(**check_options(options))
