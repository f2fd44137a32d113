"""The choice between hot functions in Python and their compiled versions.

The extension `gateway/_accelerated.pyx` is optional. It is built when the package is installed, if
there is a C compiler. GATEWAY_ACCELERATOR=off selects plain Python, as its absence does.
"""

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from types import ModuleType
from typing import Any, Final, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

EXTENSION: Final = "gateway._accelerated"


def _load() -> ModuleType | None:
    """Return the extension; None where it is not built, or not wanted."""
    # It reads and writes wire forms, which are little-endian, with plain copies.
    if os.environ.get("GATEWAY_ACCELERATOR") != "off" and sys.byteorder == "little":
        with suppress(ImportError):
            return import_module(EXTENSION)
    return None


_COMPILED: Final = _load()

BUILD: Final = "plain Python" if _COMPILED is None else "compiled"
"""Which of the two is in use."""

MISSING: Final = _COMPILED is None and os.environ.get("GATEWAY_ACCELERATOR") != "off"
"""Whether plain Python is in use only because there is no extension for this platform."""

PYTHON_VERSIONS: Final[dict[str, Callable[..., Any]]] = {}
"""The functions in Python that have a compiled version, by name: both have the same tests."""


def accelerated(function: F) -> F:
    """Return the compiled version of *function*, which has the same name, or *function* itself."""
    name = function.__name__
    PYTHON_VERSIONS[name] = function
    compiled: F = getattr(_COMPILED, name, function)
    return compiled
