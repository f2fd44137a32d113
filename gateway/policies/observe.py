"""Observe: writes one log line for each call and reports it to the metrics.

`telemetry.log.call_log` defines the lines, and `telemetry.metrics` the metrics.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from gateway.api.tap import CountCall
from gateway.ir.bodies.streams import on_stream_end
from gateway.ir.calls import (
    Call,
    InferRequest,
    ModelReadyRequest,
    OpaqueCall,
    ServerLiveRequest,
    ServerReadyRequest,
    StreamInferRequest,
    inference_of,
)
from gateway.ir.errors import GatewayError
from gateway.ir.unread import is_refusal
from gateway.service import Service
from gateway.telemetry.call_path import CallPath, reset_path, set_path
from gateway.telemetry.log.call_log import NO_FAILURES, OK, CallLog, CallRecord, code_of

R = TypeVar("R")

# Health probes are frequent and repetitive: only their failures are logged.
_QUIET = frozenset({ServerLiveRequest, ServerReadyRequest, ModelReadyRequest})

Recorder = Callable[[CallRecord], None]


class Observe:
    """Logs and reports every call when it is complete.

    Args:
        inner: The service to call; it records route and target in `telemetry.call_path`.
        record: Called with the record of each call.
        inference: Handles each InferRequest; None for *inner*.
        plain: Handles each plain inference, see `Entries`; None for *inference*.
        calls: Writes the line of each call; None for no lines.
        new_path: Makes the record of a call's path: a new one, or the one that a tap reads.
        on_call: Called with each inference or unread call that has ended; None for nothing.
        clock: Monotonic seconds.
    """

    def __init__(  # noqa: PLR0913  # all by name but the first two
        self,
        inner: Service,
        record: Recorder,
        *,
        inference: Service | None = None,
        plain: Service | None = None,
        calls: CallLog | None = None,
        new_path: Callable[..., CallPath] = CallPath,
        on_call: CountCall | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._inner = inner
        self._inference = inner if inference is None else inference
        self._plain = self._inference if plain is None else plain
        self._record = record
        self._calls = calls
        self._new_path = new_path
        self._on_call = on_call
        self._clock = clock

    async def __call__(self, call: Call[R], /) -> R:
        """Call *inner*, and report the outcome."""
        kind, model = type(call), call.model
        new_path, clock = self._new_path, self._clock
        path = new_path(model="" if model is None else model.name)
        token = set_path(path)
        start = clock()
        try:
            inner = self._inner
            if type(call) is InferRequest:
                origin = call.context.origin
                has_bytes = origin is not None and origin.has_bytes
                inner = self._plain if has_bytes and not call.outputs else self._inference
            reply = await inner(call)
        except BaseException as error:
            self._on_end(call, path, start, error)
            raise
        finally:
            reset_path(token)
        if kind is StreamInferRequest:
            return on_stream_end(call, reply, partial(self._on_end, call, path, start))
        self._on_end(call, path, start, None, reply)
        return reply

    def _on_end(
        self,
        call: Call[Any],
        path: CallPath,
        start: float,
        error: BaseException | None,
        reply: object = None,
    ) -> None:
        clock, record = self._clock, self._record
        now = clock()
        kind, model = type(call), call.model
        code, limit = OK, None
        if error is not None:
            code = code_of(error)
            limit = error.limit if isinstance(error, GatewayError) else None
        outcome = CallRecord(
            kind.__name__,
            path.model,
            "" if model is None else model.version,
            call.context,
            path,
            code,
            limit,
            now - start,
            now,
        )
        record(outcome)
        if self._calls is not None and (error is not None or kind not in _QUIET):
            self._calls.call(outcome, error, reply)
        if self._on_call is not None:
            counted = call if type(call) is OpaqueCall else inference_of(call)
            if counted is not None:
                is_refused = error is not None and is_refusal(error)
                is_failed = outcome.code not in NO_FAILURES
                self._on_call(counted, outcome.seconds, is_failed, is_refused)
