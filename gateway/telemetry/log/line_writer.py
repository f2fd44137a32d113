"""LineWriter: writes lines on a thread of its own, so that nobody waits for the output.

Lines wait in a bounded buffer. A pipe that nobody reads, a full disk or a closed output loses lines
and delays nobody; the lost lines are counted. What the lines say is in `logs.py` and
`access_log.py`.
"""

import atexit
import errno
import io
import os
import select
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic
from types import MappingProxyType
from typing import Final, Protocol

BUFFER_FULL: Final = "buffer_full"
"""The reason of a lost line that found no room, because the output takes none."""
WRITE_FAILED: Final = "write_failed"
"""The reason of a lost line that the system refused to write, as for a full disk."""

NO_LOSSES: Final[Mapping[str, int]] = MappingProxyType({BUFFER_FULL: 0, WRITE_FAILED: 0})

_MAX_LINES: Final = 10_000
_MAX_BYTES: Final = 4 << 20
# While an output takes nothing for a second, fewer lines wait: they are old when they are read.
_MAX_LATE_LINES: Final = 1_000
_LATE_S: Final = 1.0
# Several processes write to one pipe; a write of so many bytes stays in one piece.
_ATOMIC: Final = select.PIPE_BUF
# At the end, lines that an output does not take for so long are lost.
_LAST_S: Final = 0.5
_POLL_MS: Final = 200
_REPORT_S: Final = 1.0
_MODE: Final = 0o640


class LineOutput(Protocol):
    """Where lines go."""

    def descriptor(self) -> int:
        """Return the descriptor to write to, opened if necessary.

        Raises:
            OSError: It cannot be opened.
        """
        ...

    def reopen(self) -> None:
        """Open it again before the next write."""
        ...

    def close(self) -> None:
        """Close it; idempotent."""
        ...


class DescriptorOutput:
    """A descriptor that belongs to the process, such as standard error; it is never closed."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def descriptor(self) -> int:
        """Return it."""
        return self._descriptor

    def reopen(self) -> None:
        """Do nothing: it has no path."""

    def close(self) -> None:
        """Do nothing."""


class FileOutput:
    """A file that lines are appended to; it is opened again after logrotate has moved it.

    Args:
        path: The file. A FIFO may have no reader: its lines are then lost.

    Raises:
        OSError: The file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = -1
        try:
            self._file = self._open()
        except OSError as error:
            if error.errno != errno.ENXIO:  # the FIFO may have a reader later
                raise

    def descriptor(self) -> int:
        """Return the descriptor of the file that the path leads to."""
        if self._file < 0 or self._is_moved():
            self.reopen()
            self._file = self._open()
        return self._file

    def reopen(self) -> None:
        """Close the file, which the next write opens again."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def close(self) -> None:
        """Close the file; idempotent."""
        self.reopen()

    def _open(self) -> int:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        return os.open(self._path, flags, _MODE)

    def _is_moved(self) -> bool:
        """Return whether the path leads to another file, or to none."""
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return True
        opened = os.fstat(self._file)
        return (found.st_dev, found.st_ino) != (opened.st_dev, opened.st_ino)


class LineWriter:
    """Writes lines to an output, on a thread that starts with the first line.

    Args:
        output: Where they go.
        gather_s: The thread rests for this time after each write, so that it wakes up less often.
        on_failure: Called with the reason when the output begins to refuse lines.
        on_recovery: Called with the number of lost lines when it takes lines again.
            Both are called on the thread.
    """

    def __init__(
        self,
        output: LineOutput,
        gather_s: float = 0.05,
        *,
        on_failure: Callable[[str], None] = lambda _reason: None,
        on_recovery: Callable[[int], None] = lambda _count: None,
    ) -> None:
        self._output = output
        self._gather_s = gather_s
        self._on_failure = on_failure
        self._on_recovery = on_recovery
        # Garbage that is collected within `put` may log a line, too: the lock is re-entrant.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._lines: list[bytes] = []
        self._nbytes = 0
        self._taken_at = 0.0
        self._lost = dict(NO_LOSSES)
        self._thread: threading.Thread | None = None
        self._is_waiting = False  # for a line
        self._is_busy = False  # with lines that are no longer in the buffer
        self._is_urgent = False
        self._must_reopen = False
        self._end_s: float | None = None
        # Of the thread alone.
        self._reason = ""
        self._is_cut = False  # the last write ended within a line
        self._reported = 0
        self._reported_at = 0.0

    @property
    def lost(self) -> Mapping[str, int]:
        """The number of lost lines, by reason."""
        return MappingProxyType(self._lost)

    def put(self, line: bytes) -> None:
        """Write a line soon, or count it as lost; never waits and never raises."""
        with self._lock:
            if self._is_full(len(line)):
                self._lost[BUFFER_FULL] += 1
                return
            if self._end_s is not None:
                self._lost[WRITE_FAILED] += 1
                return
            self._lines.append(line)
            self._nbytes += len(line)
            if self._is_waiting:
                self._is_waiting, self._taken_at = False, monotonic()
                self._changed.notify_all()
            elif self._thread is None:
                self._start()

    def _is_full(self, size: int) -> bool:
        waiting = len(self._lines)
        if waiting >= _MAX_LINES or self._nbytes + size > _MAX_BYTES:
            return True
        return waiting >= _MAX_LATE_LINES and monotonic() - self._taken_at > _LATE_S

    def lose(self) -> None:
        """Count a line that could not be made."""
        with self._lock:
            self._lost[WRITE_FAILED] += 1

    def reopen(self) -> None:
        """Open the output again, as after logrotate."""
        with self._lock:
            if self._end_s is None:
                self._must_reopen = True
                self._wake()

    def flush(self, timeout_s: float) -> bool:
        """Wait until the lines so far are written or lost; return False after *timeout_s*."""
        with self._lock:
            self._is_urgent = True
            self._changed.notify_all()
            return self._changed.wait_for(
                lambda: not (self._lines or self._is_busy or self._must_reopen), timeout_s
            )

    def close(self) -> None:
        """Write what waits, then close the output; does not wait for that. Idempotent."""
        with self._lock:
            if self._end_s is not None:
                return
            self._end_s = monotonic() + _LAST_S
            if self._thread is None:
                self._output.close()
            self._wake()

    def _wake(self) -> None:
        """Let the thread look at once; start it if there is something to do."""
        self._is_urgent = True
        if self._thread is None and self._end_s is None:
            self._start()
        self._changed.notify_all()

    def _start(self) -> None:
        self._taken_at = monotonic()
        thread = threading.Thread(target=self._run, name="line writer", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no more threads: the next line tries again
            return
        self._thread = thread
        atexit.register(self.flush, _LAST_S)

    # -- on the thread

    def _run(self) -> None:
        while True:
            with self._lock:
                while not (self._lines or self._must_reopen or self._end_s is not None):
                    self._is_waiting = True
                    self._changed.wait()
                self._is_waiting = False
                lines, self._lines, self._nbytes = self._lines, [], 0
                must_reopen, self._must_reopen = self._must_reopen, False
                self._is_busy, self._taken_at = True, monotonic()
            if must_reopen:
                self._output.reopen()
            self._write(lines)
            with self._lock:
                self._is_busy = False
                self._changed.notify_all()
                if self._end_s is not None and not self._lines:
                    break
                self._changed.wait_for(lambda: self._is_urgent, self._gather_s)
                self._is_urgent = False
        self._output.close()
        atexit.unregister(self.flush)

    def _write(self, lines: list[bytes]) -> None:
        """Write lines, in pieces that other processes do not interrupt."""
        try:
            descriptor = self._output.descriptor()
        except OSError as error:
            self._note_failure(error, len(lines))
            return
        begin = size = 0
        for end, line in enumerate(lines):
            if size and size + len(line) > _ATOMIC:
                self._write_piece(descriptor, b"".join(lines[begin:end]))
                begin, size = end, 0
            size += len(line)
        if lines:  # without any, nobody knows whether the output takes some again
            self._write_piece(descriptor, b"".join(lines[begin:]))
        if not self._reason:
            self._report()

    def _write_piece(self, descriptor: int, piece: bytes) -> None:
        rest = b"\n" + piece if self._is_cut else piece
        try:
            while rest:
                written = self._write_some(descriptor, rest)
                self._is_cut = rest[written - 1 : written] != b"\n"
                rest = rest[written:]
        except OSError as error:
            self._note_failure(error, rest.count(b"\n"))
        else:
            self._reason = ""

    def _write_some(self, descriptor: int, data: bytes) -> int:
        """Return how many bytes the output took.

        Raises:
            OSError: It takes none, or not in time after `close`.
        """
        while True:
            try:
                return os.write(descriptor, data)
            except BlockingIOError:  # only a descriptor that does not wait
                if self._end_s is not None and monotonic() > self._end_s:
                    raise
            poll = select.poll()
            poll.register(descriptor, select.POLLOUT)
            poll.poll(_POLL_MS)

    def _note_failure(self, error: OSError, count: int) -> None:
        with self._lock:
            self._lost[WRITE_FAILED] += count
        if not self._reason:
            self._on_failure(error.strerror or str(error))
        self._reason = error.strerror or str(error)

    def _report(self) -> None:
        """Report the lines that were lost since the last report, once a second."""
        lost, now = sum(self._lost.values()), monotonic()
        if lost > self._reported and now - self._reported_at >= _REPORT_S:
            count, self._reported, self._reported_at = lost - self._reported, lost, now
            self._on_recovery(count)


class LineStream(io.TextIOBase):
    """A text stream that never waits and never fails: a writer gets its lines.

    It replaces `sys.stderr`, for tracebacks, warnings, and what libraries print.

    Args:
        writer: Writes the lines.
        descriptor: Of the output, for those who ask whether it is a terminal.
    """

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self, writer: LineWriter, descriptor: int) -> None:
        self.writer = writer
        self._descriptor = descriptor
        self._rest = ""

    def writable(self) -> bool:
        """Return True."""
        return True

    def fileno(self) -> int:
        """Return the descriptor of the output."""
        return self._descriptor

    def isatty(self) -> bool:
        """Return whether the output is a terminal."""
        return os.isatty(self._descriptor)

    def write(self, text: str) -> int:
        """Pass complete lines to the writer, and keep the rest until the line ends."""
        if not isinstance(text, str):
            raise TypeError(f"expected text, got {type(text).__name__}")
        lines, end, rest = (self._rest + text).rpartition("\n")
        self._rest = rest
        if end:
            self.writer.put((lines + end).encode(errors=self.errors))
        return len(text)

    def flush(self) -> None:
        """Pass the incomplete line to the writer; does not wait for it."""
        rest, self._rest = self._rest, ""
        if rest:
            self.writer.put(rest.encode(errors=self.errors))
