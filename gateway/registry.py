"""A name in YAML -> protocol or backend: built-in table, entry points, then dotted names.

Modules are imported on first use, so what a configuration does not name costs nothing.
"""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points
from typing import Any

from gateway.wire.codec import ProtocolSpec

PROTOCOLS: dict[str, str] = {
    "graphpipe": "gateway.protocols.graphpipe:SPEC",
    "grps": "gateway.protocols.grps:SPEC",
    "oip": "gateway.protocols.oip:SPEC",
    "trtis": "gateway.protocols.trtis:SPEC",
}

BACKENDS: dict[str, str] = {
    "onnx": "gateway.backends.repository:from_plan",
    "python": "gateway.backends.python:from_plan",
    "torch": "gateway.backends.torch:from_plan",
}


def protocol(name: str, /) -> ProtocolSpec:
    """Return the protocol called *name*.

    Raises:
        LookupError: There is none; the text lists those there are.
    """
    found = _find("protocol", name, PROTOCOLS, "gateway.protocols")
    if not isinstance(found, ProtocolSpec):
        message = f"{name!r} is not a protocol: it is {type(found).__name__}"
        raise LookupError(message)  # noqa: TRY004  # what was looked up is wrong, not an argument
    return found


def backend(name: str, /) -> Any:
    """Return what makes models of the backend called *name*; see `gateway.backends.model_spec`.

    Raises:
        LookupError: There is none, or it cannot be imported; the text says why.
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
    raise LookupError(f"there is no {kind} {name!r}; there is: {', '.join(sorted(table))}")


def load_dotted(dotted: str) -> Any:
    """Return `package.module:attribute`.

    Raises:
        LookupError: The module cannot be imported or lacks the attribute.
    """
    module_name, _, attribute = dotted.partition(":")
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except ImportError as error:
        raise LookupError(f"cannot import {module_name!r}: {error}") from error
    except AttributeError as error:
        raise LookupError(f"module {module_name!r} has no {attribute!r}") from error
