"""Reads one segment, which may be damaged or hostile.

The file is opened read-only, and its schema must be exactly that of its version. Sizes are limited
before anything is allocated. A row that does not match its checksum is skipped and counted.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import msgspec

from gateway.captures.directory import OPEN, tag_of
from gateway.captures.records import CallRow, ItemRow, RecordedCall, TensorRow, WireRow
from gateway.captures.schema import (
    APPLICATION_ID,
    CALL_COLUMNS,
    ITEM_COLUMNS,
    MAX_VALUE_BYTES,
    TABLES,
    TENSOR_COLUMNS,
    VERSION,
    WIRE_COLUMNS,
)

Row = TypeVar("Row", bound=msgspec.Struct)

_MAX_ROWS: Final = 4096
"""More tensors, replies or messages than a call has."""
_MAGIC: Final = b"SQLite format 3\0"


class UnreadableSegment(Exception):
    """A file is no segment of a capture, or its version is unknown."""


class SegmentReader:
    """One segment; a context manager.

    Attributes:
        tag: Its part of the ids of calls.
        problems: What was skipped, and why.

    Raises:
        UnreadableSegment: The file is no segment of a known version.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tag = tag_of(path)
        self.problems: list[str] = []
        try:
            with path.open("rb") as file:
                magic = file.read(len(_MAGIC))
        except OSError as error:
            raise UnreadableSegment(f"{path}: {error.strerror}") from error
        if magic != _MAGIC:
            raise UnreadableSegment(f"{path}: no SQLite file")
        immutable = "" if path.name.endswith(OPEN) else "&immutable=1"
        try:
            self._database = sqlite3.connect(
                f"{path.absolute().as_uri()}?mode=ro{immutable}", uri=True
            )
        except sqlite3.Error as error:
            raise UnreadableSegment(f"{path}: {error}") from error
        try:
            self._check()
        except sqlite3.Error as error:
            self._database.close()
            raise UnreadableSegment(f"{path}: {error}") from error
        except UnreadableSegment:
            self._database.close()
            raise

    def _check(self) -> None:
        run = self._database.execute
        self._database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
        run("PRAGMA trusted_schema = OFF")
        run("PRAGMA cell_size_check = ON")
        run("PRAGMA mmap_size = 0")
        if run("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
            raise UnreadableSegment(f"{self.path}: no segment of a capture")
        version = run("PRAGMA user_version").fetchone()[0]
        if version != VERSION:
            raise UnreadableSegment(
                f"{self.path}: capture version {version}; expected {VERSION} (a newer gateway "
                "wrote it)"
            )
        found = run(
            "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL LIMIT ?", (len(TABLES) + 1,)
        )
        if sorted(row[0] for row in found) != sorted(TABLES):
            raise UnreadableSegment(f"{self.path}: its tables are not those of version {version}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._database.close()

    def calls(self) -> Iterator[RecordedCall]:
        """Yield every call that matches its checksum, in the order of writing.

        `problems` names the others, and the place from which on nothing can be read.
        """
        last = 0
        while True:
            number = self._next(last)
            if number is None:
                return
            last = number
            call = self._read(number)
            if call is not None:
                yield call

    def _next(self, last: int) -> int | None:
        try:
            row = self._database.execute(
                "SELECT seq FROM calls WHERE seq > ? ORDER BY seq LIMIT 1", (last,)
            ).fetchone()
        except sqlite3.Error as error:
            self.problems.append(f"{self.path.name}: nothing readable after call {last}: {error}")
            return None
        return None if row is None else int(row[0])

    def call(self, number: int) -> RecordedCall | None:
        """Return one call by its number; None if it does not exist or is damaged."""
        return self._read(number)

    def request_ids(self) -> Iterator[tuple[int, str]]:
        """Yield the number and the request id of each call, damaged ones included."""
        try:
            yield from self._database.execute("SELECT seq, request_id FROM calls ORDER BY seq")
        except sqlite3.Error as error:
            self.problems.append(f"{self.path.name}: {error}")

    def number_of(self, request_id: str) -> int | None:
        """Return the number of the first call with a request id."""
        row = self._database.execute(
            "SELECT seq FROM calls WHERE request_id = ? ORDER BY seq LIMIT 1", (request_id,)
        ).fetchone()
        return None if row is None else int(row[0])

    def _read(self, number: int) -> RecordedCall | None:
        try:
            found = self._rows(number)
        except (sqlite3.Error, msgspec.ValidationError, UnicodeError, OverflowError) as error:
            self.problems.append(f"{self.tag}-{number:x}: {error}")
            return None
        if found is None:
            return None
        record, crc32 = found
        if record.crc32() != crc32:
            self.problems.append(f"{self.tag}-{number:x}: its checksum is wrong")
            return None
        if record.problem:
            self.problems.append(f"{self.tag}-{number:x}: {record.problem}")
            return None
        return record

    def _rows(self, number: int) -> tuple[RecordedCall, Any] | None:
        row = self._database.execute(
            f"SELECT {CALL_COLUMNS}, crc32 FROM calls WHERE seq = ?",  # noqa: S608
            (number,),
        ).fetchone()
        if row is None:
            return None
        record = RecordedCall(
            _struct(CallRow, row[:-1]),
            self._all(TensorRow, "tensors", TENSOR_COLUMNS, number),
            self._all(ItemRow, "items", ITEM_COLUMNS, number),
            self._all(WireRow, "wire", WIRE_COLUMNS, number),
            f"{self.tag}-{number:x}",
        )
        return record, row[-1]

    def _all(self, kind: type[Row], table: str, columns: str, number: int) -> list[Row]:
        rows = self._database.execute(
            f"SELECT {columns} FROM {table} WHERE call = ? ORDER BY rowid LIMIT ?",  # noqa: S608
            (number, _MAX_ROWS),
        )
        return [_struct(kind, row) for row in rows]


def _struct(kind: type[Row], row: tuple[Any, ...]) -> Row:
    """Return a row as a struct; the types of its columns are checked.

    Raises:
        msgspec.ValidationError: A column has another type.
    """
    return msgspec.convert(row, kind, strict=True)
