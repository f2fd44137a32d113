"""What can be set of Open Inference in YAML, for a listener and for an upstream.

A listener serves inference, health and metadata. Everything beyond is off until it is switched on
here, one by one; what is off is refused as a server refuses what it does not have, and is not
among the extensions in the server's metadata.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from gateway.wire.codec import Options

DIALECT_NAMES = ("auto", "triton", "mlserver", "kserve", "ovms", "gateway")
_NOT_READY = (503, 409)

OFF, GATEWAY, TARGET = "off", "gateway", "target"


@dataclass(frozen=True, slots=True, kw_only=True)
class Extensions:
    """What a listener serves beyond inference, health and metadata.

    Attributes:
        model_configuration: A model's configuration is told.
        statistics: "off"; "gateway": what the gateway has counted; "target": what the model's
            target has counted, or the gateway where the target counts nothing.
        repository_index: The index of models is given, with versions and states.
        model_control: Models are loaded and unloaded.
        model_files: A request to load may bring the model's files along.
        trace: The targets' trace settings are told and changed.
        opaque: Paths that are not modelled are passed on to servers of the same protocol.
        logging: "off"; "gateway": the gateway's own log settings; "target": the upstreams'.
    """

    model_configuration: bool = False
    statistics: str = OFF
    repository_index: bool = False
    model_control: bool = False
    model_files: bool = False
    trace: bool = False
    logging: str = OFF
    opaque: bool = False


_FLAG = (True, False)
_WHOSE = (OFF, GATEWAY, TARGET)

_VALUES: Mapping[str, tuple[Any, ...]] = {
    "dialect": DIALECT_NAMES,
    "not_ready_status": _NOT_READY,
    "model_configuration": _FLAG,
    "statistics": _WHOSE,
    "repository_index": _FLAG,
    "model_control": _FLAG,
    "model_files": _FLAG,
    "trace": _FLAG,
    "logging": _WHOSE,
    "opaque": _FLAG,
}

# In YAML every scalar is text.
_SCALARS: Mapping[str, Any] = {"true": True, "false": False, "503": 503, "409": 409}
_EXTENSIONS = tuple(field.name for field in fields(Extensions))


def check_options(options: Options) -> Options:
    """Return *options* with every value in its type.

    Raises:
        ValueError: A key or value is not one of ours.
    """
    checked = {}
    for key, given in options.items():
        if key not in _VALUES:
            raise ValueError(f"oip has no option {key!r}, only {', '.join(_VALUES)}")
        value = _SCALARS.get(given, given) if isinstance(given, str) else given
        # True equals 1: the type counts too.
        if (type(value), value) not in [(type(known), known) for known in _VALUES[key]]:
            needed = ", ".join(str(known).lower() for known in _VALUES[key])
            raise ValueError(f"{key} {given!r} is none of {needed}")
        checked[key] = value
    return checked


def read_extensions(options: Options) -> Extensions:
    """Return what a listener's *options* switch on."""
    return Extensions(**{key: options[key] for key in _EXTENSIONS if key in options})
