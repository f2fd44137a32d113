"""Reads one segment, which may be damaged or hostile.

The file is opened read-only, and its schema must be exactly that of its version. Sizes are limited
before anything is allocated. A row that does not match its checksum is skipped and counted.
"""

import itertools
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import msgspec

from gateway.migration.captures.directory import OPEN, tag_of
from gateway.migration.captures.schema import (
    APPLICATION_ID,
    CALL_COLUMNS,
    ITEM_COLUMNS,
    MAX_VALUE_BYTES,
    TABLES,
    TENSOR_COLUMNS,
    VERSION,
    WIRE_COLUMNS,
)
from gateway.shadow.records.records import CallRow, ItemRow, RecordedCall, TensorRow, WireRow

Row = TypeVar("Row", bound=msgspec.Struct)
_Found = tuple[RecordedCall | None, str]
"""A whole call, or None with what is wrong with it; both are empty where there is no such call."""

_MAX_ROWS: Final = 4096
_MAX_NOTES: Final = 64
_FIND: Final = "SELECT seq FROM calls WHERE"
_FIRST: Final = " ORDER BY seq LIMIT 1"
_CLIENT_ID: Final = "CASE WHEN json_valid(details) THEN json_extract(details, '$.id') END"
"""More tensors, replies or messages than a call has."""
_MAX_CALL_BYTES: Final = 512 << 20
"""More elements and messages than a call has. Rows of a hostile file may share their pages."""
_CALLS_AT_ONCE: Final = 64
_ROWS_AT_ONCE: Final = 2048
_BYTES_AT_ONCE: Final = 4 << 20
_UNREADABLE: Final = (sqlite3.Error, msgspec.ValidationError, UnicodeError, OverflowError)
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
        # Calls that were read with the one before them, each with what is wrong with it.
        self._ahead: dict[int, _Found] = {}
        self._last = 0
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
        if sorted((row[0] for row in found), key=str) != sorted(TABLES):  # one may be bytes
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

    @property
    def description(self) -> dict[str, str]:
        """What its writer noted of it; nothing if that cannot be read."""
        try:
            rows = self._database.execute("SELECT key, value FROM meta LIMIT ?", (_MAX_NOTES,))
            return {str(key): str(value) for key, value in rows}
        except sqlite3.Error:
            return {}  # `calls` names what is wrong

    def calls(self) -> Iterator[RecordedCall]:
        """Yield every call that matches its checksum, in the order of writing.

        `problems` names the others, and the place from which on nothing can be read.
        """
        last = 0
        while True:
            numbers = self._numbers(last)
            if not numbers:
                return
            if any(each <= before for before, each in itertools.pairwise((last, *numbers))):
                self.problems.append(f"{self.path.name}: the calls after {last} are in no order")
                return
            last = numbers[-1]
            for number, found in self._read_many(numbers):
                call = self._delivered(number, found)
                if call is not None:
                    yield call

    def _numbers(self, last: int) -> list[int]:
        """Return the numbers of the calls after *last*, as many as are read at once."""
        try:
            rows = self._database.execute(
                "SELECT seq FROM calls WHERE seq > ? ORDER BY seq LIMIT ?", (last, _CALLS_AT_ONCE)
            ).fetchall()
        except sqlite3.Error:
            return self._next(last)
        return [int(row[0]) for row in rows]

    def _next(self, last: int) -> list[int]:
        """Return the number of the next call alone: one of those after it is not readable."""
        try:
            row = self._database.execute(
                "SELECT seq FROM calls WHERE seq > ? ORDER BY seq LIMIT 1", (last,)
            ).fetchone()
        except sqlite3.Error as error:
            self.problems.append(f"{self.path.name}: nothing readable after call {last}: {error}")
            return []
        return [] if row is None else [int(row[0])]

    def call(self, number: int) -> RecordedCall | None:
        """Return one call by its number; None if it does not exist or is damaged.

        Calls that are asked for in their order are read several at once.
        """
        found = self._ahead.pop(number, None)
        if found is None and number == self._last + 1:
            numbers = self._numbers(self._last)
            if numbers and numbers[0] == number:
                self._ahead = dict(self._read_many(numbers))
                found = self._ahead.pop(number, None)
        self._last = number
        return self._delivered(number, self._read(number) if found is None else found)

    def request_ids(self) -> Iterator[tuple[int, str, int]]:
        """Yield the number, the request id and the start of each call, damaged ones included."""
        try:
            run = self._database.execute
            yield from run("SELECT seq, request_id, at_us FROM calls ORDER BY seq")
        except sqlite3.Error as error:
            self.problems.append(f"{self.path.name}: {error}")

    def number_of(self, request_id: str) -> int | None:
        """Return the number of the first call with a request id, or with this id in its body."""
        try:
            run = self._database.execute
            row = run(f"{_FIND} request_id = ?{_FIRST}", (request_id,)).fetchone()
            if row is None:
                row = run(f"{_FIND} {_CLIENT_ID} = ?{_FIRST}", (request_id,)).fetchone()
        except _UNREADABLE as error:  # a damaged page, or a request id that is no UTF-8
            self.problems.append(f"{self.path.name}: {error}")
            return None
        return None if row is None else int(row[0])

    def _delivered(self, number: int, found: _Found) -> RecordedCall | None:
        """Return a call that is whole; note what is wrong with any other one."""
        record, problem = found
        if problem:
            self.problems.append(f"{self.tag}-{number:x}: {problem}")
        return record

    def _read_many(self, numbers: Sequence[int]) -> Iterator[tuple[int, _Found]]:
        """Yield calls that follow one another, each alone if they are large or damaged."""
        try:
            together = self._rows_of_many(numbers) if len(numbers) > 1 else None
        except _UNREADABLE:
            together = None
        if together is None:
            for number in numbers:
                yield number, self._read(number)
            return
        for number, (record, crc32) in zip(numbers, together, strict=True):
            yield number, _checked(record, crc32)

    def _read(self, number: int) -> _Found:
        try:
            found = self._rows(number)
        except _UNREADABLE as error:
            return None, str(error)
        return (None, "") if found is None else _checked(*found)

    def _rows_of_many(self, numbers: Sequence[int]) -> list[tuple[RecordedCall, Any]] | None:
        """Return calls that follow one another with their checksums; None if they are large."""
        between = numbers[0], numbers[-1]
        for table, column in (("tensors", "data"), ("items", "parameters"), ("wire", "body")):
            count, size = self._database.execute(
                f"SELECT COUNT(*), SUM(LENGTH({column})) FROM {table} WHERE call BETWEEN ? AND ?",  # noqa: S608
                between,
            ).fetchone()
            if count > _ROWS_AT_ONCE or (size or 0) > _BYTES_AT_ONCE:
                return None
        calls = self._database.execute(
            f"SELECT {CALL_COLUMNS}, crc32 FROM calls WHERE seq BETWEEN ? AND ? ORDER BY seq",  # noqa: S608
            between,
        ).fetchall()
        if len(calls) != len(numbers):
            return None
        tensors = self._by_call(TensorRow, "tensors", TENSOR_COLUMNS, between)
        items = self._by_call(ItemRow, "items", ITEM_COLUMNS, between)
        wire = self._by_call(WireRow, "wire", WIRE_COLUMNS, between)
        rows = msgspec.convert([row[:-1] for row in calls], list[CallRow], strict=True)
        return [
            (
                RecordedCall(
                    row,
                    tensors.get(number, ()),
                    items.get(number, ()),
                    wire.get(number, ()),
                    f"{self.tag}-{number:x}",
                ),
                call[-1],
            )
            for number, row, call in zip(numbers, rows, calls, strict=True)
        ]

    def _by_call(
        self, kind: type[Row], table: str, columns: str, between: tuple[int, int]
    ) -> dict[int, list[Row]]:
        """Return the rows of a table by their call."""
        found = self._database.execute(
            f"SELECT call, {columns} FROM {table} WHERE call BETWEEN ? AND ? ORDER BY call, rowid",  # noqa: S608
            between,
        ).fetchall()
        rows = msgspec.convert([row[1:] for row in found], list[kind], strict=True)  # type: ignore[valid-type]  # a class
        by_call: dict[int, list[Row]] = {}
        for (number, *_), row in zip(found, rows, strict=True):
            by_call.setdefault(number, []).append(row)
        return by_call

    def _rows(self, number: int) -> tuple[RecordedCall, Any] | None:
        row = self._database.execute(
            f"SELECT {CALL_COLUMNS}, crc32 FROM calls WHERE seq = ?",  # noqa: S608
            (number,),
        ).fetchone()
        if row is None:
            return None
        self._check_size(number)
        record = RecordedCall(
            _struct(CallRow, row[:-1]),
            self._all(TensorRow, "tensors", TENSOR_COLUMNS, number),
            self._all(ItemRow, "items", ITEM_COLUMNS, number),
            self._all(WireRow, "wire", WIRE_COLUMNS, number),
            f"{self.tag}-{number:x}",
        )
        return record, row[-1]

    def _check_size(self, number: int) -> None:
        """Check the bytes of a call before they are read.

        Raises:
            OverflowError: There are too many.
        """
        (size,) = self._database.execute(
            "SELECT (SELECT TOTAL(LENGTH(data)) FROM tensors WHERE call = ?1) + "
            "(SELECT TOTAL(LENGTH(body)) FROM wire WHERE call = ?1)",
            (number,),
        ).fetchone()
        if size > _MAX_CALL_BYTES:
            raise OverflowError(f"it has {size:.0f} bytes; at most {_MAX_CALL_BYTES} are read")

    def _all(self, kind: type[Row], table: str, columns: str, number: int) -> list[Row]:
        rows = self._database.execute(
            f"SELECT {columns} FROM {table} WHERE call = ? ORDER BY rowid LIMIT ?",  # noqa: S608
            (number, _MAX_ROWS),
        )
        return [_struct(kind, row) for row in rows]


def _checked(record: RecordedCall, crc32: Any) -> _Found:
    """Return a call, or what is wrong with it."""
    if record.crc32() != crc32:
        return None, "its checksum is wrong"
    problem = record.problem
    return (None, problem) if problem else (record, "")


def _struct(kind: type[Row], row: tuple[Any, ...]) -> Row:
    """Return a row as a struct; the types of its columns are checked.

    Raises:
        msgspec.ValidationError: A column has another type.
    """
    return msgspec.convert(row, kind, strict=True)
