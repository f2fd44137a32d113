"""Observe: what became of each call: one line in the log, one report to whoever counts.

No payload and no header values, ever. Metric names are `telemetry`'s business.
"""

from __future__ import annotations

import time
from asyncio import CancelledError
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import msgspec
import structlog

from gateway.ir.calls import (
    Call,
    InferRequest,
    ModelReadyRequest,
    ServerLiveRequest,
    ServerReadyRequest,
    StreamInferRequest,
)
from gateway.ir.errors import ErrorCode, GatewayError
from gateway.ir.streams import on_stream_end
from gateway.service import Service
from gateway.telemetry.call_path import CALL_PATH, CallPath
from gateway.telemetry.log import WarningBudget

log = structlog.get_logger(__name__)

R = TypeVar("R")

OK = "ok"

# Probes come every few seconds and say the same: only their failures are worth a line.
_QUIET = frozenset({ServerLiveRequest, ServerReadyRequest, ModelReadyRequest})


class CallRecord(msgspec.Struct, frozen=True):
    """What became of a call.

    Attributes:
        kind: Type of the call: "InferRequest".
        model: As the caller named it; "" for the server.
        version: As the caller asked for it; "" for none.
        protocol: The caller's codec.
        route: Name of the route that took it; "" when none did.
        target: Name of the target that answered; "" when none was asked.
        code: "ok", or the value of the error's code.
        limit: Name of the limit that was exceeded; None for none.
        seconds: From the call read to the answer complete, a stream's last item included.
        ended: When it was, on the clock of `Observe`.
        request_id: The caller's or the gateway's.
    """

    kind: str
    model: str
    version: str
    protocol: str
    route: str
    target: str
    code: str
    limit: str | None
    seconds: float
    ended: float
    request_id: str


Recorder = Callable[[CallRecord], None]


class Observe:
    """Reports every call once it is complete.

    Args:
        inner: Answers; notes route and target in `telemetry.taken`.
        record: Called with the record of each call.
        inference: Answers each InferRequest; None for *inner*.
        lines_per_s: Most log lines a second; the next line after a gap says how many are missing.
            0 writes none.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        inner: Service,
        record: Recorder,
        *,
        inference: Service | None = None,
        lines_per_s: int = 100,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._inner = inner
        self._inference = inner if inference is None else inference
        self._record = record
        self._budget = WarningBudget(lines_per_s) if lines_per_s > 0 else None
        self._clock = clock

    async def __call__(self, call: Call[R], /) -> R:
        """Answer *call*, unchanged."""
        is_stream = type(call) is StreamInferRequest
        taken = CallPath()
        token = CALL_PATH.set(taken)
        begun = self._clock()
        try:
            inner = self._inference if type(call) is InferRequest else self._inner
            reply = await inner(call)
        except BaseException as error:
            self._ended(call, taken, begun, error)
            raise
        finally:
            CALL_PATH.reset(token)
        if is_stream:
            return on_stream_end(call, reply, partial(self._ended, call, taken, begun))
        self._ended(call, taken, begun, None)
        return reply

    def _ended(
        self, call: Call[Any], taken: CallPath, begun: float, error: BaseException | None
    ) -> None:
        ended = self._clock()
        model, context = call.model, call.context
        code, limit = OK, None
        if error is not None:
            code = code_of(error)
            limit = error.limit if isinstance(error, GatewayError) else None
        seen = CallRecord(
            type(call).__name__,
            "" if model is None else model.name,
            "" if model is None else model.version,
            context.protocol,
            taken.route,
            taken.target,
            code,
            limit,
            ended - begun,
            ended,
            context.request_id,
        )
        self._record(seen)
        if self._budget is None or (error is None and type(call) in _QUIET):
            return
        skipped = self._budget.admit(ended)
        if skipped is not None:
            _write(seen, error, skipped)


def code_of(error: BaseException) -> str:
    """Return the value of the code that *error* is answered with."""
    if isinstance(error, GatewayError):
        code = error.code
    else:
        code = ErrorCode.CANCELLED if isinstance(error, CancelledError) else ErrorCode.INTERNAL
    return str(code.value)


def _write(seen: CallRecord, error: BaseException | None, skipped: int) -> None:
    keys: dict[str, Any] = {
        "kind": seen.kind,
        "model": seen.model,
        "version": seen.version,
        "protocol": seen.protocol,
        "route": seen.route,
        "target": seen.target,
        "code": seen.code,
        "us": round(seen.seconds * 1e6),
        "request_id": seen.request_id,
    }
    if isinstance(error, GatewayError):
        keys["error"] = error.message
    if skipped:
        keys["skipped"] = skipped
    log.info("call", **keys)
