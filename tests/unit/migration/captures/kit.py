"""Captures of calls in one process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gateway.migration.captures.recorder import CaptureRecorder
from gateway.migration.captures.sampling import CaptureOptions, CaptureSampler
from gateway.shadow.records.privacy import Privacy
from gateway.shadow.records.records import MissingElements, Recordable, record_of
from gateway.shadow.records.transfer import (
    Confirmation,
    SampleMessage,
    decode_message,
    encode_message,
)
from tests.unit.shadow.kit import recordable


class LocalCapture:
    """A sampler and a recorder in one process. Messages pass as bytes, without a socket."""

    def __init__(
        self, options: CaptureOptions, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._sampler = CaptureSampler(options)
        self.change = self._sampler.change
        self.counts = self._sampler.counts
        self.samples = self._sampler.samples
        self.stopped = ""
        self._number = 0
        self._confirmed = threading.Condition()
        self._done = 0
        self._recorder = CaptureRecorder(options, self._confirm, clock)
        self._recorder.start()

    def put(self, call: Recordable) -> None:
        """Record a call that was sampled."""
        if self.stopped or self.counts.in_flight > self._sampler.options.outbox_calls:
            self.counts.dropped["stopped" if self.stopped else "queue"] += 1
            return
        reason, record = self._sampler.reason_to_skip(call), None
        try:
            record = record_of(call, self._sampler.options.privacy, None)
        except MissingElements as missing:
            reason = missing.reason
        if reason:
            self.counts.skipped[reason] += 1
            self._send(SampleMessage(None, {reason: 1}))
        else:
            self._send(SampleMessage(record, percent=self._sampler.percent))

    def _send(self, message: SampleMessage) -> None:
        self._number += 1
        view = memoryview(b"".join(encode_message(message)))
        self._recorder.put((1, 1), self._number, decode_message(view), view.nbytes)

    def _confirm(self, _socket: int, confirmation: Confirmation) -> None:
        self.counts.recorded += confirmation.recorded
        self.counts.nbytes += confirmation.nbytes
        self.counts.dropped.update(confirmation.lost)
        self.stopped = confirmation.stopped
        with self._confirmed:
            self._done = confirmation.done
            self._confirmed.notify_all()

    def flush(self) -> None:
        """Wait until the calls so far are written."""
        self._send(SampleMessage())
        with self._confirmed:
            assert self._confirmed.wait_for(lambda: self._done == self._number, 60)

    def close(self) -> None:
        self._recorder.close()


def recorder(directory: Path, privacy: Privacy | None = None, **options: Any) -> LocalCapture:
    """Return a started capture of a directory."""
    values: dict[str, Any] = {"min_free": 0.0} | options
    return LocalCapture(CaptureOptions(directory=directory, privacy=privacy or Privacy(), **values))


def record(directory: Path, count: int, privacy: Privacy | None = None, **options: Any) -> None:
    """Record *count* calls to a sealed capture."""
    made = recorder(directory, privacy, **options)
    for number in range(count):
        assert made.samples("fraud", f"r{number}")
        made.put(recordable(number))
    made.close()
    assert made.counts.recorded == count
