"""Finds protocols and backends by their names in YAML: built in, entry points, then dotted names.

Modules are imported on first use, so a configuration does not load protocols that it does not name.
"""

import importlib
from importlib.metadata import entry_points
from typing import Any

from gateway.api.protocol import ProtocolSpec

PROTOCOLS: dict[str, str] = {
    "graphpipe": "gateway.protocols.graphpipe:SPEC",
    "grps": "gateway.protocols.grps:SPEC",
    "oip": "gateway.protocols.oip:SPEC",
    "trtis": "gateway.protocols.trtis:SPEC",
}

BACKENDS: dict[str, str] = {
    "onnx": "gateway.backends.repository:from_spec",
    "python": "gateway.backends.python:from_spec",
    "torch": "gateway.backends.torch:from_spec",
}


def protocol(name: str, /) -> ProtocolSpec:
    """Return the protocol *name*.

    Raises:
        LookupError: It does not exist; the text lists the built-in ones.
    """
    spec = _find("protocol", name, PROTOCOLS, "gateway.protocols")
    if not isinstance(spec, ProtocolSpec):
        message = f"{name!r} is a {type(spec).__name__}; expected a ProtocolSpec"
        raise LookupError(message)  # noqa: TRY004  # the object is wrong, not an argument
    return spec


def backend(name: str, /) -> Any:
    """Return the function of the backend *name* that builds models from a `ModelSpec`.

    Raises:
        LookupError: It does not exist or cannot be imported.
    """
    return _find("backend", name, BACKENDS, "gateway.backends")


def _find(kind: str, name: str, table: dict[str, str], group: str) -> Any:
    dotted = table.get(name)
    if dotted is not None:
        return load_dotted(dotted)
    for entry in entry_points(group=group, name=name):
        return entry.load()
    if ":" in name:
        return load_dotted(name)
    raise LookupError(f"unknown {kind} {name!r}; expected one of {', '.join(sorted(table))}")


def load_dotted(dotted: str) -> Any:
    """Import `package.module:attribute` and return the attribute.

    Raises:
        LookupError: The module cannot be imported, or does not have the attribute.
    """
    module_name, _, attribute = dotted.partition(":")
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except ImportError as error:
        raise LookupError(f"cannot import {module_name!r}: {error}") from error
    except AttributeError as error:
        raise LookupError(f"module {module_name!r} has no {attribute!r}") from error
