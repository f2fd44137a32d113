"""Writes sampled calls to segments, on a thread, and confirms what is written.

It runs in the shadow process, for all serving processes. A call is confirmed when its transaction
is committed, so whoever sent it knows what a crash of this process has lost.
"""

import os
import shutil
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Final

import structlog

from gateway import __version__
from gateway.migration.captures.directory import (
    PERCENT,
    UPSTREAM,
    append_line,
    lock_of,
    sealed_segments,
)
from gateway.migration.captures.sampling import CALL_BYTES, CaptureOptions
from gateway.migration.captures.segment_writer import SegmentWriter, recover
from gateway.migration.captures.uploader import CaptureUploader
from gateway.settings.private_files import make_directory
from gateway.shadow.packets import Sender
from gateway.shadow.records.privacy import Hasher
from gateway.shadow.records.records import RecordedCall, with_hashes
from gateway.shadow.records.transfer import Confirmation, SampleMessage

log = structlog.get_logger(__name__)

_BATCH: Final = 64
# A killed process loses at most 0.25 s of calls; the rest of it is for a busy machine.
_COMMIT_S: Final = 0.15
# Serving processes follow a change of the share one after the other. So a larger share begins a
# segment when no call of the smaller one has come for this time.
_CHANGE_S: Final = 1.0

Confirm = Callable[[int, Confirmation], None]
"""Receives the confirmation for a socket, on the thread of the recorder."""


class CaptureRecorder:
    """Writes calls. `start` it before the first one, and `close` it after the last.

    Args:
        options: Where and what to record.
        confirm: Receives what became of the calls.
        clock: Monotonic seconds.

    Attributes:
        uploader: Copies sealed segments to an object store; None for no store.
    """

    def __init__(
        self, options: CaptureOptions, confirm: Confirm, clock: Callable[[], float] = monotonic
    ) -> None:
        self.options = options
        self._confirm = confirm
        self._clock = clock
        self._queue: SimpleQueue[tuple[Sender, int, SampleMessage, int] | None] = SimpleQueue()
        self._put_bytes = self._taken_bytes = 0
        self._stopped = ""
        self._hasher = Hasher()
        self._thread: threading.Thread | None = None
        self._segment: SegmentWriter | None = None
        self._in_batch = 0
        # The share of the open segment in percent, and when a call of this share came last.
        self._percent, self._percent_at = options.percent, 0.0
        # What the next confirmation of each sender says.
        self._pending: dict[Sender, Confirmation] = {}
        self._sealer = ThreadPoolExecutor(1, thread_name_prefix="capture-seal")
        # Calls without a record since the last segment was sealed.
        self._skipped: Counter[str] = Counter()
        self._dropped: Counter[str] = Counter()
        self.uploader: CaptureUploader | None = None
        if options.upload:
            self.uploader = CaptureUploader(options.directory, options.upload, options.keep_local_s)

    def start(self) -> None:
        """Seal what a crash left, and start the thread.

        Raises:
            OSError: The directory cannot be written.
        """
        make_directory(self.options.directory)
        recover(self.options.directory)
        if self.uploader is not None:
            self.uploader.start()
        self._thread = threading.Thread(target=self._run, name="capture", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write what is queued, seal the segment, and stop the thread; idempotent."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            thread.join()
            if self.uploader is not None:
                self.uploader.close()

    @property
    def has_room(self) -> bool:
        """Whether less than `outbox_bytes` wait for the disk."""
        return self._put_bytes - self._taken_bytes < self.options.outbox_bytes

    def put(self, sender: Sender, number: int, message: SampleMessage, size: int) -> None:
        """Take a message; never waits and never raises.

        Args:
            sender: Gets the confirmation.
            number: Of the message; it is confirmed with this number.
            message: The call.
            size: The size of the message in bytes.
        """
        size += CALL_BYTES
        self._put_bytes += size
        self._queue.put((sender, number, message, size))

    def _run(self) -> None:
        """Write calls until `close`; the thread."""
        begun = self._clock()
        while True:
            wait = _COMMIT_S if not self._pending else max(0.0, begun + _COMMIT_S - self._clock())
            try:
                entry = self._queue.get(timeout=wait)
            except Empty:
                self._finish_batch()
                begun = self._clock()
                continue
            if entry is None:
                break
            if not self._pending:
                begun = self._clock()
            sender, number, message, size = entry
            self._follow_share(message)
            self._take(sender, number, message)
            self._taken_bytes += size
            is_flush = message.record is None
            if is_flush or self._in_batch >= _BATCH or self._clock() - begun >= _COMMIT_S:
                self._finish_batch()
        self._finish_batch()
        self._guarded(self._seal)
        self._sealer.shutdown()

    def _follow_share(self, message: SampleMessage) -> None:
        """Seal the open segment if a call is one of another share: each segment has its own."""
        if message.record is None:
            return
        percent, now = message.percent, self._clock()
        is_larger = percent > self._percent
        if self._segment is not None and is_larger and now - self._percent_at < _CHANGE_S:
            return
        if self._segment is not None and percent != self._percent:
            self._finish_batch()
            self._guarded(self._seal)
        self._percent, self._percent_at = percent, now

    def _take(self, sender: Sender, number: int, message: SampleMessage) -> None:
        self._skipped.update(message.skipped)
        self._dropped.update(message.dropped)
        pending = self._pending.get(sender)
        if pending is None:
            pending = self._pending[sender] = Confirmation(epoch=sender[1])
        pending.done = number
        if message.record is None:
            return
        reason = self._write(message.record)
        if reason:
            pending.lost[reason] = pending.lost.get(reason, 0) + 1
            self._dropped[reason] += 1
        else:
            pending.recorded += 1
            pending.nbytes += message.record.nbytes

    def _write(self, record: RecordedCall) -> str:
        """Add a call to the transaction; return why it is lost, "" if it is not."""
        try:
            hashed = with_hashes(record, self._hasher)
            if not self._guarded(partial(self._add, hashed)):
                return "stopped"
        except Exception:  # a defect costs one sample, not the thread
            log.exception("call not recorded")
            return "internal"
        self._in_batch += 1
        return ""

    def _finish_batch(self) -> None:
        """Commit the open transaction, and confirm its calls."""
        self._guarded(self._commit)
        self._confirm_pending()

    def _confirm_pending(self) -> None:
        pending, self._pending = self._pending, {}
        for sender, confirmation in pending.items():
            confirmation.stopped = self._stopped
            self._confirm(sender[0], confirmation)

    def _guarded(self, work: Callable[[], None]) -> bool:
        """Do *work* on the files; an error stops the capture with one event."""
        if self._stopped:  # the thread that seals may have noticed first
            self._abandon()
            return False
        try:
            work()
        except (OSError, sqlite3.Error) as error:
            self._report_stop(str(error))
            self._abandon()
            return False
        return True

    def _abandon(self) -> None:
        """Leave the open segment as it is; calls of the open transaction are lost, and counted."""
        for pending in self._pending.values():
            if pending.recorded:
                pending.lost["stopped"] = pending.lost.get("stopped", 0) + pending.recorded
            pending.recorded = pending.nbytes = 0
        self._dropped["stopped"] += self._in_batch
        self._in_batch = 0
        segment, self._segment = self._segment, None
        if segment is not None:
            segment.abandon()

    def _report_stop(self, reason: str) -> None:
        if not self._stopped:
            self._stopped = reason
            log.error("capture stopped", directory=str(self.options.directory), reason=reason)

    def _add(self, record: RecordedCall) -> None:
        if self._segment is None:
            self._check_space()
            notes = {
                "pid": str(os.getpid()),
                "gateway": __version__,
                PERCENT: f"{self._percent:g}",
                **{f"{UPSTREAM}{name}": url for name, url in self.options.upstreams.items()},
            }
            self._segment = SegmentWriter(self.options.directory, notes)
        if not self._in_batch:
            self._segment.begin()
        self._segment.add(record)

    def _commit(self) -> None:
        segment = self._segment
        if segment is None:
            return
        if self._in_batch:
            segment.commit()
            if not segment.is_present:
                raise OSError(f"{segment.path.name} was removed")
            self._in_batch = 0
            self._confirm_pending()
        if (
            segment.nbytes >= self.options.segment_bytes
            or self._clock() - segment.opened >= self.options.segment_s
        ):
            self._seal()
        else:
            self._check_space()

    def _seal(self) -> None:
        segment, self._segment = self._segment, None
        if segment is None:
            return
        counts = {"skipped": dict(self._skipped), "dropped": dict(+self._dropped)}
        self._skipped, self._dropped = Counter(), Counter()
        # The checksum of a full segment takes a second, in which calls would fill the queue.
        self._sealer.submit(self._seal_segment, segment, counts)

    def _seal_segment(self, segment: SegmentWriter, counts: dict[str, dict[str, int]]) -> None:
        try:
            sealed = segment.seal(counts)
            size = sealed.stat().st_size
            log.info("capture sealed", segment=sealed.name, calls=segment.calls, bytes=size)
            self._rotate()
        except (OSError, sqlite3.Error) as error:
            self._report_stop(str(error))

    def _rotate(self) -> None:
        """Keep all segments together below the limit."""
        segments = sealed_segments(self.options.directory)
        total = sum(each.stat().st_size for each in segments)
        for oldest in segments:
            if total <= self.options.max_bytes:
                return
            if not self.options.rotates:
                raise OSError(f"{total} bytes; max_bytes is {self.options.max_bytes}")
            total -= oldest.stat().st_size
            oldest.unlink()
            lock_of(oldest).unlink(missing_ok=True)
            append_line(self.options.directory, {"removed": oldest.name, "reason": "max_bytes"})
            log.info("capture segment removed", segment=oldest.name, reason="max_bytes")

    def _check_space(self) -> None:
        usage = shutil.disk_usage(self.options.directory)
        if usage.free < usage.total * self.options.min_free:
            raise OSError(
                f"{usage.free / usage.total:.1%} of the disk is free; min_free is "
                f"{self.options.min_free:.0%}"
            )
