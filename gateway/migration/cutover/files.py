"""The files of a cut-over: its state, which is replaced as a whole, and the log of its events.

`NAME.json` is written aside, flushed to the disk and renamed, before a weight changes. Whoever
holds `NAME.lock` leads: it alone decides and writes the state.
"""

import fcntl
import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import msgspec
import orjson

from gateway.migration.cutover.steps import CutoverEvent, CutoverState
from gateway.settings.private_files import FILE_MODE, make_directory, private_opener

_FORMAT: Final = 1
_TAIL_BYTES: Final = 1 << 18


class StateConflict(OSError):
    """Another gateway has changed the state, or leads. The state must be read again."""


class UnusableState(Exception):
    """A state that cannot be read, or that belongs to another plan.

    Attributes:
        state: The state of the other plan; None if it cannot be read.
    """

    def __init__(self, message: str, state: CutoverState | None = None) -> None:
        super().__init__(message)
        self.state = state


class CutoverFiles:
    """The files of one cut-over.

    Args:
        directory: It is created if it does not exist.
        migration: The name of the migration.

    Attributes:
        trouble: Why nobody can be elected at present; never the case with files.

    Raises:
        OSError: The directory cannot be created.
    """

    trouble = ""

    def __init__(self, directory: Path, migration: str) -> None:
        make_directory(directory)
        self._directory = directory
        name = quote(migration, safe=" ")
        self._state = directory / f"{name}.json"
        self._log = directory / f"{name}.log.jsonl"
        self._lock = directory / f"{name}.lock"
        self._held: int | None = None

    def load(self, digest: str) -> CutoverState | None:
        """Return the state of the plan with this hash; None if there is no state.

        Raises:
            UnusableState: The file is damaged, or the state is one of another plan.
        """
        try:
            data = self._state.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UnusableState(f"{self._state} cannot be read: {error.strerror}") from error
        return decode_state(str(self._state), data, digest)

    def save(self, digest: str, state: CutoverState) -> None:
        """Replace the state; it is on the disk when this returns.

        Raises:
            OSError: It cannot be written. The previous state stays.
        """
        _replace(self._state, encode_state(digest, state) + b"\n")

    def set_aside(self) -> None:
        """Keep a state that cannot be used under another name.

        Raises:
            OSError: It cannot be renamed.
        """
        if self._state.exists():
            self._state.replace(self._state.with_suffix(".json.unusable"))

    def append(self, event: CutoverEvent, state: CutoverState, at_s: float) -> None:
        """Add an event to the log.

        Raises:
            OSError: It cannot be written.
        """
        with open(self._log, "ab", opener=private_opener) as file:
            file.write(encode_event(event, state, at_s) + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def events(self, limit: int = 100) -> list[dict[str, Any]]:
        """Return the last events, the latest last; lines that are damaged are left out."""
        try:
            with self._log.open("rb") as file:
                file.seek(0, os.SEEK_END)
                file.seek(max(0, file.tell() - _TAIL_BYTES))
                lines = file.read().splitlines()
        except FileNotFoundError:
            return []
        return list(decode_events(lines))[-limit:]

    def try_lead(self) -> bool:
        """Return whether this process leads from now on; another gateway may do so.

        Raises:
            OSError: The lock cannot be opened.
        """
        if self._held is not None:
            return True
        held = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(held)
            return False
        self._held = held
        return True

    def release(self) -> None:
        """Let another process lead; idempotent."""
        held, self._held = self._held, None
        if held is not None:
            os.close(held)


class PendingRollback:
    """The file of a rollback that other gateways do not know of yet: `NAME.rollback.json`.

    Args:
        directory: It is created when there is something to write.
        migration: The name of the migration.
    """

    def __init__(self, directory: Path, migration: str) -> None:
        self._path = directory / f"{quote(migration, safe=' ')}.rollback.json"

    def load(self) -> int | None:
        """Return the attempt that was rolled back; None for none.

        Raises:
            OSError: The file cannot be read.
            ValueError: It is damaged.
        """
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=_RolledBack).attempt
        except FileNotFoundError:
            return None

    def save(self, attempt: int) -> None:
        """Note the attempt that is rolled back; it is on the disk when this returns.

        Raises:
            OSError: It cannot be written.
        """
        make_directory(self._path.parent)
        _replace(self._path, msgspec.json.encode(_RolledBack(attempt)) + b"\n")

    def clear(self) -> None:
        """Forget it; idempotent.

        Raises:
            OSError: The file cannot be removed.
        """
        self._path.unlink(missing_ok=True)


class _RolledBack(msgspec.Struct):
    attempt: int


def _replace(path: Path, body: bytes) -> None:
    """Replace a file as a whole; it is on the disk when this returns."""
    aside = path.with_suffix(".json.new")
    with open(aside, "wb", opener=private_opener) as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _checksum(document: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(document, sort_keys=True).encode())


def encode_state(digest: str, state: CutoverState) -> bytes:
    """Return the state of the plan with this hash as JSON with a checksum."""
    values = {**asdict(state), "phase": state.phase.value}
    document = {"format": _FORMAT, "plan": digest, "state": values}
    return orjson.dumps({**document, "crc32": _checksum(document)})


def decode_state(where: str, data: bytes, digest: str) -> CutoverState:
    """Return the state of the plan with this hash; *where* is its place in error messages.

    Raises:
        UnusableState: It is damaged, of another version of the gateway, or of another plan.
    """
    try:
        document = json.loads(data)
        checksum = document.pop("crc32")
        if document["format"] != _FORMAT:
            raise UnusableState(f"{where} has format {document['format']}; expected {_FORMAT}")
        if checksum != _checksum(document):
            raise UnusableState(f"{where} is damaged: its checksum is wrong")
        state = msgspec.convert(document["state"], CutoverState)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        # msgspec.ValidationError is a ValueError.
        raise UnusableState(f"{where} is damaged: {error}") from error
    if document["plan"] != digest:
        raise UnusableState(
            f"{where} is of another plan: hash {document['plan'][:12]}, expected {digest[:12]}",
            state,
        )
    return state


def encode_event(event: CutoverEvent, state: CutoverState, at_s: float) -> bytes:
    """Return an event as a line of JSON, without its end; *at_s* is in seconds since the epoch."""
    entry = {
        "at_us": round(at_s * 1e6),
        "event": event.event,
        "text": event.text,
        "step": state.step,
        "weight": state.weight,
        "epoch": state.epoch,
    }
    return orjson.dumps(entry)


def decode_events(lines: list[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the event of each line; lines that are damaged are left out."""
    for line in lines:
        try:
            entry = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue  # the process or the machine died while it was written
        if isinstance(entry, dict):
            yield entry
