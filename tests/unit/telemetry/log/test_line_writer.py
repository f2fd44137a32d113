"""Lines on their way to an output that may block, fail or be gone."""

from __future__ import annotations

import errno
import os
import select
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from gateway.telemetry.log import line_writer
from gateway.telemetry.log.line_writer import (
    BUFFER_FULL,
    WRITE_FAILED,
    DescriptorOutput,
    LineStream,
    LineWriter,
)

WAIT_S = 20.0


class Pipe:
    """A pipe with a writer of lines at one end.

    Attributes:
        recovered: The numbers of lost lines that were reported.
        failures: The reasons that were reported.
        reported: Set with each of the former.
    """

    def __init__(self) -> None:
        self.reader, self.end = os.pipe()
        self.recovered: list[int] = []
        self.failures: list[str] = []
        self.reported = threading.Event()
        self.writer = LineWriter(
            DescriptorOutput(self.end),
            0.0,
            on_failure=self.failures.append,
            on_recovery=self._recover,
        )

    def _recover(self, count: int) -> None:
        self.recovered.append(count)
        self.reported.set()

    def fill(self) -> None:
        """Fill the pipe, so that the next write blocks."""
        os.set_blocking(self.end, False)
        for size in (1 << 16, 1 << 12, 1):
            while select.select([], [self.end], [], 0)[1]:
                os.write(self.end, b"x" * size)
        os.set_blocking(self.end, True)

    def read(self, size: int = 1 << 20) -> bytes:
        """Read what is there."""
        return os.read(self.reader, size)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    """A pipe, which is read to its end afterwards so that its thread ends."""
    made = Pipe()
    yield made
    made.writer.close()
    os.set_blocking(made.reader, False)
    while not made.writer.flush(0.01):
        with suppress(BlockingIOError):  # its thread has not written yet
            made.read()


def test_lines_are_written_in_order(pipe: Pipe) -> None:
    """Each line arrives once, whole and in its place."""
    lines = [b"%d\n" % number for number in range(1000)]
    for line in lines:
        pipe.writer.put(line)
    assert pipe.writer.flush(WAIT_S)
    assert b"".join(lines) == pipe.read()
    assert {BUFFER_FULL: 0, WRITE_FAILED: 0} == pipe.writer.lost


def test_unread_pipe_loses_lines(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full pipe delays no caller; what finds no room is counted, and reported when it is read."""
    monkeypatch.setattr(line_writer, "_MAX_LINES", 10)
    pipe.fill()
    for _ in range(100):
        pipe.writer.put(b"line\n")
    assert not pipe.writer.flush(0.0)
    lost = pipe.writer.lost[BUFFER_FULL]
    assert 80 <= lost <= 90
    while not pipe.writer.flush(0.01):
        pipe.read()
    pipe.writer.put(b"line\n")
    assert pipe.reported.wait(WAIT_S)
    assert ([lost], []) == (pipe.recovered, pipe.failures)


def test_few_lines_wait_for_an_output_that_is_late(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An output that takes nothing for a while gets fewer lines, so that none is old."""
    monkeypatch.setattr(line_writer, "_MAX_LATE_LINES", 5)
    monkeypatch.setattr(line_writer, "_LATE_S", 0.0)
    pipe.fill()
    pipe.writer.put(b"first\n")
    for _ in range(20):
        pipe.writer.put(b"line\n")
    # The thread may take five lines before it meets the full pipe.
    assert 10 <= pipe.writer.lost[BUFFER_FULL] <= 16


def test_reader_that_is_gone_loses_lines(pipe: Pipe) -> None:
    """A broken pipe raises nothing; the reason is reported once."""
    os.close(pipe.reader)
    for number in range(3):
        pipe.writer.put(b"line %d\n" % number)
        assert pipe.writer.flush(WAIT_S)
    assert 3 == pipe.writer.lost[WRITE_FAILED]
    assert ["Broken pipe"] == pipe.failures
    pipe.writer.reopen()  # writes nothing, so it shows nothing
    assert pipe.writer.flush(WAIT_S)
    assert [] == pipe.recovered
    pipe.reader = os.open(os.devnull, os.O_RDONLY)


def test_full_disk_loses_lines() -> None:
    """Lines that a device refuses are counted."""
    full = os.open("/dev/full", os.O_WRONLY)
    writer = LineWriter(DescriptorOutput(full), 0.0)
    for _ in range(3):
        writer.put(b"line\n")
    assert writer.flush(WAIT_S)
    assert {BUFFER_FULL: 0, WRITE_FAILED: 3} == writer.lost
    writer.close()
    assert writer.flush(WAIT_S)
    os.close(full)


def test_line_that_was_cut_ends_before_the_next(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that becomes full within a line breaks no other line."""
    room = iter([3, 0, 100])
    written: list[bytes] = []

    def write(_descriptor: int, data: bytes) -> int:
        size = next(room)
        if not size:
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(data[:size])
        return len(written[-1])

    monkeypatch.setattr(os, "write", write)
    pipe.writer.put(b"first\n")
    assert pipe.writer.flush(WAIT_S)
    pipe.writer.put(b"second\n")
    assert pipe.writer.flush(WAIT_S)
    assert [b"fir", b"\nsecond\n"] == written
    assert ([1], ["No space left on device"]) == (pipe.recovered, pipe.failures)


def test_nonblocking_output_is_awaited(pipe: Pipe) -> None:
    """A descriptor that does not wait, which another program may have set, loses no line."""
    pipe.fill()
    os.set_blocking(pipe.end, False)
    pipe.writer.put(b"the last\n")
    found = b""
    while not found.endswith(b"the last\n"):
        found = pipe.read()
    assert 0 == sum(pipe.writer.lost.values())


def test_stream_passes_on_whole_lines(pipe: Pipe) -> None:
    """A traceback, which is printed in pieces, arrives in whole lines; text needs no encoding."""
    stream = LineStream(pipe.writer, pipe.end)
    print("one", 2, "\udc80", file=stream)
    print("no end", end="", file=stream, flush=True)
    assert pipe.writer.flush(WAIT_S)
    assert b"one 2 \\udc80\nno end" == pipe.read()
    assert (False, pipe.end) == (stream.isatty(), stream.fileno())
