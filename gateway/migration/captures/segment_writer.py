"""Writes one segment, seals it, and seals what a crash left."""

import fcntl
import os
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from typing import Any, Final

import structlog
from msgspec.structs import astuple

from gateway.migration.captures.directory import (
    OPEN,
    SEALED,
    append_line,
    lock_of,
    locked,
    new_segment,
    open_segments,
    read_manifest,
    sealed_segments,
    sha256_of,
    sync_directory,
    tag_of,
)
from gateway.migration.captures.schema import (
    APPLICATION_ID,
    CALL_COLUMNS,
    ITEM_COLUMNS,
    TABLES,
    TENSOR_COLUMNS,
    VERSION,
    WIRE_COLUMNS,
)
from gateway.shadow.records.records import RecordedCall

log = structlog.get_logger(__name__)

_PAGE_BYTES: Final = 65536
"""Calls of 602 KB are written at 420 MB/s with this size, and at 270 MB/s with 16 KiB."""


def _insert(table: str, columns: str) -> str:
    marks = ", ".join("?" * (columns.count(",") + 1))
    return f"INSERT INTO {table} ({columns}) VALUES ({marks})"  # noqa: S608  # constants


_CALLS: Final = _insert("calls", f"seq, {CALL_COLUMNS}, crc32")
_TENSORS: Final = _insert("tensors", f"call, {TENSOR_COLUMNS}")
_ITEMS: Final = _insert("items", f"call, {ITEM_COLUMNS}")
_WIRE: Final = _insert("wire", f"call, {WIRE_COLUMNS}")


class SegmentWriter:
    """One open segment; used by one thread.

    Attributes:
        calls: Number of calls so far.
        nbytes: Bytes of their elements and messages.
        first_us: Start of the earliest call; 0 without one.
        last_us: Start of the latest call.

    Raises:
        OSError: The file cannot be created.
        sqlite3.Error: The same.
    """

    def __init__(self, directory: Path, description: Mapping[str, str]) -> None:
        self.path = new_segment(directory)
        self.tag = tag_of(self.path)
        self.calls = self.nbytes = self.first_us = self.last_us = 0
        self._number = 0
        self.opened = monotonic()
        self._lock = os.open(lock_of(self.path), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
            self._database = sqlite3.connect(
                self.path, isolation_level=None, check_same_thread=False
            )
            self._create(description)
        except BaseException:
            os.close(self._lock)
            raise

    def _create(self, description: Mapping[str, str]) -> None:
        run = self._database.execute
        run(f"PRAGMA page_size = {_PAGE_BYTES}")
        mode = run("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            run("PRAGMA journal_mode = TRUNCATE")
            log.warning("capture without a write-ahead log", segment=self.path.name, mode=mode)
        run("PRAGMA synchronous = NORMAL")
        run(f"PRAGMA application_id = {APPLICATION_ID}")
        run(f"PRAGMA user_version = {VERSION}")
        run("BEGIN")
        for statement in TABLES:
            run(statement)
        self._database.executemany("INSERT INTO meta VALUES (?, ?)", description.items())
        run("COMMIT")

    @property
    def is_present(self) -> bool:
        """Whether the file still exists under its name."""
        return self.path.exists()

    def note(self, description: Mapping[str, str]) -> None:
        """Add to the description, within the transaction; a key is written once."""
        self._database.executemany("INSERT INTO meta VALUES (?, ?)", description.items())

    def begin(self) -> None:
        """Begin a transaction, unless one is open."""
        if not self._database.in_transaction:
            self._database.execute("BEGIN")

    def commit(self) -> None:
        """Commit the transaction: a process that is killed later loses none of it."""
        self._database.execute("COMMIT")

    def add(self, record: RecordedCall) -> str:
        """Add a call to the transaction, and return its id.

        Its own row comes last, and no other call gets its number: if a value cannot be written,
        nothing refers to the rows before it.
        """
        self._number += 1
        number, call, crc32 = self._number, record.call, record.crc32()
        run, run_many = self._database.execute, self._database.executemany
        run_many(_TENSORS, [(number, *astuple(each)) for each in record.tensors])
        run_many(_ITEMS, [(number, *astuple(each)) for each in record.items])
        if record.wire:
            run_many(_WIRE, [(number, *astuple(each)) for each in record.wire])
        run(_CALLS, (number, *astuple(call), crc32))
        self.calls += 1
        self.nbytes += record.nbytes
        self.first_us = min(self.first_us or call.at_us, call.at_us)
        self.last_us = max(self.last_us, call.at_us)
        return f"{self.tag}-{number:x}"

    def abandon(self) -> None:
        """Close the file without sealing it, after an error."""
        try:
            self._database.close()
        except sqlite3.Error as error:
            log.warning("capture not closed", segment=self.path.name, reason=str(error))
        finally:
            os.close(self._lock)

    def seal(self, counts: Mapping[str, Mapping[str, int]]) -> Path:
        """Make the segment one read-only file, and add it to the manifest.

        Args:
            counts: Calls that were dropped and skipped meanwhile, by reason.

        Raises:
            OSError: The directory cannot be written.
            sqlite3.Error: The same.
        """
        _detach_log(self._database)
        entry = {
            "calls": self.calls,
            "first_us": self.first_us,
            "last_us": self.last_us,
            **counts,
        }
        try:
            return _seal_file(self.path, entry)
        finally:
            lock_of(self.path).unlink(missing_ok=True)
            os.close(self._lock)


def _detach_log(database: sqlite3.Connection) -> None:
    """Move the write-ahead log into the file, and close it."""
    try:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        database.execute("PRAGMA journal_mode = DELETE")
    finally:
        database.close()


def _seal_file(path: Path, entry: Mapping[str, Any]) -> Path:
    sealed = path.with_name(path.name.removesuffix(OPEN) + SEALED)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.fchmod(descriptor, 0o440)
    finally:
        os.close(descriptor)
    path.rename(sealed)
    sync_directory(path.parent)
    line = {"segment": sealed.name, "bytes": sealed.stat().st_size, **entry}
    append_line(path.parent, {**line, "sha256": sha256_of(sealed)})
    return sealed


def recover(directory: Path) -> list[Path]:
    """Seal the segments that a crash left, and return them; an empty one is removed.

    A segment that another process is writing stays as it is.

    Raises:
        OSError: The directory cannot be written.
    """
    sealed = []
    for path in open_segments(directory):
        with locked(path) as is_free:
            if not is_free:
                continue
            try:
                entry = _leftover(path)
            except sqlite3.Error as error:
                log.warning("capture not recovered", segment=path.name, reason=str(error))
                continue
            if entry["calls"]:
                sealed.append(_seal_file(path, entry))
            else:
                path.unlink()
            lock_of(path).unlink(missing_ok=True)
    listed = {entry.get("segment") for entry in read_manifest(directory)[0]}
    for path in sealed_segments(directory):
        if path.name not in listed:  # the crash came between the two steps of sealing
            try:
                entry = _sealed_extent(path)
            except sqlite3.Error as error:
                log.warning("capture not recovered", segment=path.name, reason=str(error))
                continue
            line = {"segment": path.name, "bytes": path.stat().st_size, **entry}
            append_line(directory, {**line, "sha256": sha256_of(path)})
            sealed.append(path)
    return sealed


def _leftover(path: Path) -> dict[str, Any]:
    """Bring a segment that a crash left into one file, and return what it has."""
    database = sqlite3.connect(path, isolation_level=None)
    try:
        has_table = database.execute(
            "SELECT count(*) FROM sqlite_master WHERE name = 'calls'"
        ).fetchone()[0]
        entry = _extent(database) if has_table else {"calls": 0}
    finally:
        _detach_log(database)
    return entry


def _sealed_extent(path: Path) -> dict[str, Any]:
    """Return what a sealed segment has."""
    uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
    database = sqlite3.connect(uri, uri=True)
    try:
        return _extent(database)
    finally:
        database.close()


def _extent(database: sqlite3.Connection) -> dict[str, Any]:
    calls, first, last = database.execute(
        "SELECT count(*), min(at_us), max(at_us) FROM calls"
    ).fetchone()
    return {"calls": calls, "first_us": first or 0, "last_us": last or 0, "recovered": True}
