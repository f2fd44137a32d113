"""Calls to record, and captures of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gateway.ir.calls import InferRequest, InferResponse
from gateway.ir.context import CallSequence, Context, ModelRef, Need
from gateway.ir.tensor import RequestedOutput, array_tensor, items_tensor
from gateway.migration.captures.privacy import Privacy
from gateway.migration.captures.recorder import CaptureRecorder
from gateway.migration.captures.records import MissingElements, Recordable, record_of
from gateway.migration.captures.sampling import CaptureOptions, CaptureSampler
from gateway.migration.captures.transfer import (
    Confirmation,
    SampleMessage,
    decode_message,
    encode_message,
)

SECRET = b"seeded-secret-4711"
HEADER = "seeded-header-0815"


def request(number: int = 0) -> InferRequest:
    """Return a request with a secret in every place that clients write to."""
    text = SECRET.decode()
    return InferRequest(
        model=ModelRef("fraud", "7"),
        context=Context(
            protocol="oip.http",
            request_id=f"r{number}",
            metadata=(("authorization", HEADER), ("x-tenant", HEADER), ("user-agent", "curl/8")),
            needs=frozenset({Need.NAMES}),
        ),
        inputs=(
            array_tensor("features", np.arange(4, dtype=np.float32)),
            items_tensor("text", (1,), [SECRET]),
        ),
        outputs=(RequestedOutput("y", 2),),
        id="own",
        sequence=CallSequence(9, start=True),
        priority=1,
        parameters={"prompt": text},
    )


def recordable(number: int = 0, **fields: Any) -> Recordable:
    call = request(number)
    reply = InferResponse(
        model=ModelRef("fraud"),
        outputs=(items_tensor("y", (1,), [SECRET]),),
        parameters={"note": SECRET.decode()},
    )
    values: dict[str, Any] = {
        "started_us": 1_700_000_000_000_000 + number,
        "request": call,
        "kind": "InferRequest",
        "context": call.context,
        "took_us": 1500,
        "items": [(1400, reply)],
    }
    return Recordable(**values | fields)


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


FULL = Privacy(payload="full", parameters=True, headers=("x-tenant",))
