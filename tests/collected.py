"""A run in several processes that collects the tests once; each process imports the files it runs.

By itself each process of xdist imports all files and makes all tests, to run a share of them. With
`--collect-only`, the option `--collected FILE` writes the names of the tests. The processes of a run
with this option read them there, and collect a file when its first test is due.
"""

from __future__ import annotations

import gc
import importlib
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


@contextmanager
def lasting_objects() -> Iterator[None]:
    """Let the garbage collector pass by what is collected inside, now and later: all of it stays."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


class CollectedNames:
    """Writes what a run collects."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Write the names of the tests, and the gateway's modules that they import."""
        names: dict[str, list[str]] = {}
        for item in session.items:
            names.setdefault(item.nodeid.partition("::")[0], []).append(item.nodeid)
        # Hypothesis draws constants of these modules: all processes must have them from the start.
        modules = sorted(name for name in sys.modules if name.partition(".")[0] == "gateway")
        self._path.write_text(json.dumps({"modules": modules, "tests": names}), "utf-8")


class CollectedTests:
    """Gives a process of xdist the tests of a collection before, without the import of their files."""

    def __init__(self, path: Path) -> None:
        found = json.loads(path.read_text("utf-8"))
        self._modules: list[str] = found["modules"]
        self._names: dict[str, list[str]] = found["tests"]
        self._files: dict[str, _File] = {}

    def pytest_pycollect_makemodule(self, module_path: Path, parent: pytest.Collector) -> _File:
        """Postpone the collection of a file."""
        file: _File = _File.from_parent(parent, path=module_path)
        return self._files.setdefault(file.nodeid, file)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Put names in the place of the tests, which are not collected yet."""
        for module in self._modules:
            importlib.import_module(module)
        tests: list[_Name] = []
        for path, names in self._names.items():
            if (file := self._files.get(path)) is not None:
                file.tests = slice(len(tests), len(tests) + len(names))
                tests += [_Name(name, file) for name in names]
        session.items = _Tests(tests)


class _File(pytest.Module):
    """A file with tests, which yields none before they are due.

    Attributes:
        tests: The numbers of its tests.
        is_due: Whether it is to be collected.
    """

    tests = slice(0)
    is_due = False

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        return super().collect() if self.is_due else ()


@dataclass(frozen=True, slots=True)
class _Name:
    """A test that is not collected yet."""

    nodeid: str
    file: _File


class _Tests(list[Any]):
    """The tests by their numbers. Access to one collects its file."""

    def __getitem__(self, number: Any) -> Any:
        found = super().__getitem__(number)
        if not isinstance(found, _Name):
            return found
        session, file = found.file.session, found.file
        file.is_due = True
        # What earlier tests left is not to stay.
        gc.collect()
        with lasting_objects():
            items = list(session.genitems(file))
            session.config.hook.pytest_collection_modifyitems(
                session=session, config=session.config, items=items
            )
        collected = {item.nodeid: item for item in items}
        self[file.tests] = [collected[each.nodeid] for each in self[file.tests]]
        return super().__getitem__(number)
