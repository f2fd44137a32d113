"""The reference implementation uses public names of aiohttp and grpcio alone."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from aiohttp import web
from grpc import aio

from gateway.transports import reference

FILES = sorted(Path(reference.__path__[0]).glob("*.py"))
LIBRARIES = ("aiohttp", "grpc", "yarl")
MODULES: dict[str, Any] = {"aiohttp": aiohttp, "web": web, "grpc": grpc, "aio": aio}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def private_names(tree: ast.AST) -> Iterator[str]:
    """Yield the private names of other modules, and those of an object that is not `self`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [part for each in node.names for part in each.name.split(".")]
        elif isinstance(node, ast.ImportFrom):
            names = [*(node.module or "").split("."), *(each.name for each in node.names)]
        elif isinstance(node, ast.Attribute):
            is_own = isinstance(node.value, ast.Name) and node.value.id == "self"
            names = [] if is_own else [node.attr]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = node.value.split(".") if node.value.startswith(LIBRARIES) else []
        else:
            continue
        yield from filter(is_private, names)


def unknown_of_self(tree: ast.AST) -> Iterator[str]:
    """Yield the private attributes of `self` that no class of the file defines."""
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
        and is_private(node.attr)
    ]
    defined = {node.attr for node in found if isinstance(node.ctx, ast.Store)}
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    defined |= {node.name for node in ast.walk(tree) if isinstance(node, kinds)}
    yield from {node.attr for node in found} - defined


def unexported(tree: ast.AST) -> Iterator[str]:
    """Yield what is used of the libraries and is no name that they export."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = MODULES.get(node.value.id)
            if module is not None and node.attr not in module.__all__:
                yield f"{module.__name__}.{node.attr}"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(LIBRARIES):
            yield from (each.name for each in node.names if each.name not in (*MODULES, "URL"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_private_name_of_a_library_is_used(path: Path) -> None:
    """A new version of a library may change them, and the gateway would not install beside it."""
    tree = ast.parse(path.read_text())
    assert [] == [*private_names(tree), *unknown_of_self(tree), *unexported(tree)]


def test_the_scan_finds_private_names() -> None:
    """One of each kind."""
    tree = ast.parse(
        "from grpc._cython import cygrpc\n"
        "LOGGER = 'grpc._cython.cygrpc'\n"
        "class Server(aio.Server):\n"
        "    def start(self): self._loop, connection._payload\n"
    )
    assert ["_cython", "_cython", "_payload"] == sorted(private_names(tree))
    assert ["_loop"] == list(unknown_of_self(tree))


def test_own_names_hide_none_of_a_base() -> None:
    """A private name of a class would replace that of its base in a library."""
    for path in FILES:
        module = importlib.import_module(f"{reference.__name__}.{path.stem}")
        for kind in vars(module).values():
            if not isinstance(kind, type) or kind.__module__ != module.__name__:
                continue
            bases = [each for each in kind.__mro__ if each.__module__.startswith(LIBRARIES)]
            own = {name for name in vars(kind) if is_private(name)} - {"_abc_impl"}
            assert not own & {name for base in bases for name in dir(base)}, kind
