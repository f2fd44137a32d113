"""The signatures of `gateway.api` stand in a file, so that no change of them goes unnoticed.

`python -m tests.unit.api.test_signatures` writes the file again. A change that breaks packages
needs another first number in `API_VERSION`, an addition another second one.
"""

from __future__ import annotations

import enum
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, ForwardRef

from gateway import api
from gateway.api import tensors, wire

SIGNATURES = Path(__file__).with_name("signatures.txt")
_INHERITED = frozenset(
    name for base in (object, BaseException, enum.Enum) for name in dir(base)
) | {"__post_init__"}


def signatures() -> Iterator[str]:
    """Yield a line for each name, and one for each field and method of a class."""
    yield f"version {api.API_VERSION}"
    for module in (api, tensors, wire):
        for name in module.__all__:
            if name != "API_VERSION":
                yield from _described(module, name)


def _described(module: ModuleType, name: str) -> Iterator[str]:
    found = getattr(module, name)
    path = f"{module.__name__}.{name}"
    if not inspect.isclass(found):
        is_function = inspect.isfunction(found)
        yield f"{path}{inspect.signature(found)}" if is_function else f"{path} = {_text(found)}"
        return
    yield path
    if issubclass(found, enum.Enum):
        yield f"    {', '.join(found.__members__)}"
        return
    fields: dict[str, Any] = {}
    methods: dict[str, Any] = {}
    for base in reversed(found.__mro__):
        if base.__module__.startswith("gateway."):
            fields |= inspect.get_annotations(base)
            methods |= vars(base)
    for field, annotation in fields.items():
        if not field.startswith("_"):
            yield f"    {field}: {_text(annotation)}"
    for method, value in methods.items():
        if method.startswith("_") or method in _INHERITED or method in fields:
            continue
        function = getattr(value, "__func__", value)
        if isinstance(function, property) and function.fget is not None:
            yield f"    {method} -> {_text(inspect.get_annotations(function.fget)['return'])}"
        elif inspect.isfunction(function):
            yield f"    {method}{inspect.signature(function)}"


def _text(annotation: object) -> str:
    if isinstance(annotation, ForwardRef):  # of a NamedTuple
        return annotation.__forward_arg__
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _fresh() -> str:
    return "\n".join(signatures()) + "\n"


def test_signatures_are_those_of_the_file() -> None:
    """A change of a name, field or method shows in `signatures.txt`."""
    assert SIGNATURES.read_text("utf-8") == _fresh()


def test_the_api_is_imported_without_the_gateway() -> None:
    """A package that imports `gateway.api` loads no transport, no policy and no protocol."""
    code = "import sys, gateway.api; print(*[m for m in sys.modules if m.startswith('gateway.')])"
    found = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout.split()
    heavy = {"transports", "policies", "protocols", "app", "config", "backends", "migration"}
    assert set() == {name.split(".")[1] for name in found} & heavy


if __name__ == "__main__":
    SIGNATURES.write_text(_fresh(), "utf-8")
