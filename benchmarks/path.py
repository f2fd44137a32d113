"""The path of a request through the files of the gateway: which functions it calls, in order."""

import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

import gateway

_ROOT = f"{Path(gateway.__file__).parent}/"


class Calls:
    """A context manager that records the calls of functions of the gateway.

    A coroutine that resumes counts as a call. Calls of other packages do not count.
    """

    def __init__(self) -> None:
        self._calls: list[tuple[str, str]] = []

    def __enter__(self) -> Self:
        sys.setprofile(self._record)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None:
        sys.setprofile(None)

    def _record(self, frame: FrameType, event: str, _argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(_ROOT):
            self._calls.append((code.co_filename.removeprefix(_ROOT), code.co_qualname))

    @property
    def files(self) -> list[str]:
        """The file of each run of calls within one file, in order."""
        return [file for file, _ in self._visits()]

    def text(self, name: str) -> str:
        """Return the counts, then a line for each run of calls within one file."""
        files = self.files
        counts = f"{len(set(files))} files, {len(files) - 1} changes of file"
        lines = [f"{name}: {counts}, {len(self._calls)} calls"]
        for number, (file, functions) in enumerate(self._visits(), 1):
            lines.append(f"{number:4}  {file:42} {', '.join(functions)}")
        return "\n".join([*lines, ""])

    def _visits(self) -> Iterator[tuple[str, list[str]]]:
        for file, calls in groupby(self._calls, key=lambda call: call[0]):
            yield file, [function for _, function in calls]
