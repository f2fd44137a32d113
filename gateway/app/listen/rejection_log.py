"""Counts and logs the requests of a listener that reach no service."""

from collections.abc import Callable
from time import monotonic
from typing import Any, TypedDict

import structlog

from gateway.api.tap import CountCall
from gateway.app.chains.tracing import Tracing
from gateway.ir.calls import OpaqueCall
from gateway.ir.context import Client
from gateway.ir.errors import GatewayError, Unauthenticated
from gateway.ir.unread import is_refusal, unread_call
from gateway.telemetry.log.call_log import NO_FAILURES, CallLog, CallRecord
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.upstream_metrics import ByteCounter
from gateway.transports.connection_count import TooManyConnections
from gateway.wire.heads.request_id import new_request_ids
from gateway.wire.http import HttpRequest

log = structlog.get_logger(__name__)


class Reports(TypedDict):
    """What a frontend reports to."""

    on_rejected: Callable[[str, GatewayError], object]
    on_blocked: Callable[[str, str, float], None]
    message_bytes: ByteCounter


class RejectionLog:
    """Counts and logs the requests of one listener that reach no service.

    Connections that are refused have one line a second at most, with their number.

    Args:
        listener: Its name, for the log.
        metrics: Counts them.
        call_log: Writes the lines.
        tracing: Makes their spans; None for no spans.
        on_call: Called with each of them whose client is known; None for nothing.
    """

    def __init__(
        self,
        listener: str,
        metrics: Metrics,
        call_log: CallLog,
        tracing: Tracing | None = None,
        on_call: CountCall | None = None,
    ) -> None:
        self._on_call = on_call
        self._request_ids = new_request_ids()
        self._listener = listener
        self._tracing = tracing
        self._codecs: dict[str, Any] = {}
        self._metrics = metrics
        self._call_log = call_log
        self._logged = 0.0
        self._unlogged = 0

    def reports(self, protocol: str, codec: Any = None) -> Reports:
        """Return what the frontend of *protocol* reports to.

        Args:
            protocol: Its name.
            codec: What encodes its errors; None for no spans with statuses.
        """
        self._codecs[protocol] = codec
        return {
            "on_rejected": self.rejected,
            "on_blocked": self._metrics.loop_blocked,
            "message_bytes": self._metrics.bytes.of(self._listener, protocol),
        }

    def call(
        self, call: OpaqueCall, record: CallRecord, error: GatewayError | None, *, is_refused: bool
    ) -> None:
        """Count and log a request that was forwarded without a service, or refused."""
        self._metrics.call(record)
        self._call_log.call(record, error)
        if self._on_call is not None:
            self._on_call(call, record.seconds, record.code not in NO_FAILURES, is_refused)

    def rejected(self, protocol: str, error: GatewayError) -> str:
        """Count *error*, log it, and return the request id, which is new if *error* has none."""
        self._metrics.rejected(protocol, error)
        if isinstance(error, TooManyConnections):
            self._connection_refused(error)
            return ""
        error.request_id = error.request_id or next(self._request_ids)
        self._call_log.rejected(self._listener, protocol, error)
        if self._tracing is not None:
            self._tracing.rejected(self._listener, protocol, error, self._codecs.get(protocol))
        if self._on_call is not None and error.client is not None:
            client, wire = error.client, HttpRequest("", error.path)
            if isinstance(error, Unauthenticated):  # a stranger makes one row, whatever it sends
                client, wire = Client(client.address), HttpRequest("", "")
            call = unread_call(protocol, wire, client, error.request_id, error.model)
            is_failed = error.code.value not in NO_FAILURES
            self._on_call(call, 0.0, is_failed, is_refusal(error))
        return error.request_id

    def _connection_refused(self, error: TooManyConnections) -> None:
        now = monotonic()
        self._unlogged += 1
        if now - self._logged >= 1.0:
            log.warning(
                "connections refused",
                listener=self._listener,
                address=error.address,
                limit=error.limit,
                count=self._unlogged,
            )
            self._logged, self._unlogged = now, 0
