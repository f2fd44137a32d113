"""CallLog: one line for each call, and one for each request that reached no service.

Lines hold no payloads and no header values but the request id and the `user-agent`. Empty fields
are omitted. The terminal and standard error get a limited number of lines per second; an access log
gets all of them.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
import structlog

from gateway.ir.calls import InferResponse
from gateway.ir.context import NO_CLIENT, Client, Context
from gateway.ir.errors import AccessDenied, ErrorCode, GatewayError, Unauthenticated
from gateway.ir.identity import ANONYMOUS
from gateway.ir.tensors.data import ArrayData, RawData
from gateway.telemetry.call_path import INFERENCES, CallPath
from gateway.telemetry.log.access_log import AccessLog
from gateway.telemetry.log.error_texts import error_text

log = structlog.get_logger(__name__)

OK: Final = "ok"
PASSTHROUGH: Final = "Passthrough"
"""The kind of a request that is forwarded without being read."""
TRAFFIC_KINDS: Final = INFERENCES | {PASSTHROUGH}
"""The kinds of calls that rates and shares of failures count: no probes, and no metadata."""
NO_FAILURES: Final = frozenset({OK, ErrorCode.CANCELLED.value})
"""The codes of calls that did not fail: a client may leave whenever it likes."""
LIMIT: Final = "calls_per_second"
"""The key of `telemetry.log` that limits the lines."""

_SUMMARY_S: Final = 1.0


# Nothing in it refers to it, so it is in no reference cycle that the garbage collector must find.
class CallRecord(msgspec.Struct, frozen=True, gc=False):
    """The outcome of a call.

    Attributes:
        kind: Type of the call: "InferRequest".
        model: As the caller named it; "" for the server.
        version: The requested version; "" for none.
        context: Of the call, as its frontend decoded it.
        path: The route, the target and the times of the call.
        code: "ok", or the value of the error's code.
        limit: Name of the exceeded limit; None for none.
        seconds: From the decoded call to the complete reply, including a stream's last item.
        ended: Time of the end, on the clock of `Observe`.
    """

    kind: str
    model: str
    version: str
    context: Context
    path: CallPath
    code: str
    limit: str | None
    seconds: float
    ended: float


class WarningBudget:
    """Limits warnings about clients to *per_second*, and counts the rest."""

    def __init__(self, per_second: int = 10) -> None:
        self._per_second = per_second
        self._window = 0.0
        self._used = 0
        self._dropped = 0

    def admit(self, now: float) -> int | None:
        """Return the number of warnings dropped since the last one; None to drop this one.

        Args:
            now: Monotonic seconds.
        """
        if now - self._window >= 1.0:
            self._window = now
            self._used = 0
        if self._used >= self._per_second:
            self._dropped += 1
            return None
        self._used += 1
        return self.drain()

    def drain(self) -> int:
        """Return the number of warnings dropped since the last one, and forget it."""
        dropped, self._dropped = self._dropped, 0
        return dropped


class CallLog:
    """Writes the lines about calls and rejected requests.

    Args:
        lines_per_s: Maximum lines per second, once for calls that succeed and once for the others;
            0 writes none.
        access: Gets every line; None for no access log.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        lines_per_s: int = 100,
        access: AccessLog | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._access: AccessLog | None = None
        self._lost_before: Counter[str] = Counter()  # by earlier access logs
        self._summary: asyncio.TimerHandle | None = None
        self.configure(lines_per_s, access)

    def configure(self, lines_per_s: int, access: AccessLog | None) -> None:
        """Use other settings from now on; see the arguments of the class."""
        self.close()
        self._lost_before = Counter(self.lost_lines())
        self._access = access
        self._is_enabled = lines_per_s > 0
        self._succeeded = WarningBudget(lines_per_s)
        self._failed = WarningBudget(lines_per_s)

    def call(self, record: CallRecord, error: BaseException | None, reply: object = None) -> None:
        """Write the line of a call.

        Args:
            record: The outcome.
            error: The one that ended the call; None for none.
            reply: The only reply; None for a stream.
        """
        budget = self._succeeded if error is None else self._failed
        skipped = budget.admit(record.ended) if self._is_enabled else None
        if skipped is None:
            if self._summary is None and self._is_enabled:
                self._summarise_later()
            if self._access is None:
                return
        keys = _call_keys(record, error, reply)
        if self._access is not None:
            self._access.write("call", keys)
        if skipped is not None:
            keys |= _skipped(skipped)
            if error is None:
                log.info("call", **keys)
            else:
                log.warning("call", **keys)

    def rejected(self, listener: str, protocol: str, error: GatewayError) -> None:
        """Write the line of a request that reached no service."""
        skipped = self._failed.admit(self._clock()) if self._is_enabled else None
        if skipped is None:
            if self._summary is None and self._is_enabled:
                self._summarise_later()
            if self._access is None:
                return
        keys = _rejection_keys(listener, protocol, error)
        if self._access is not None:
            self._access.write("rejected", keys)
        if skipped is not None:
            log.warning("rejected", **keys, **_skipped(skipped))

    def lost_lines(self) -> Mapping[str, int]:
        """Return the number of lines that the access log lost, by reason."""
        lost = {} if self._access is None else self._access.lost
        return self._lost_before + Counter(lost)

    def reopen(self) -> None:
        """Open the file of the access log again, as after logrotate."""
        if self._access is not None:
            self._access.reopen()

    def close(self) -> None:
        """Write what is missing, and close the access log; idempotent."""
        if self._summary is not None:
            self._summary.cancel()
            self._summarise()
        if self._access is not None:
            self._access.close()

    def _summarise_later(self) -> None:
        """Report the missing lines soon, if no later line does."""
        self._summary = asyncio.get_running_loop().call_later(_SUMMARY_S, self._summarise)

    def _summarise(self) -> None:
        self._summary = None
        succeeded, failed = self._succeeded.drain(), self._failed.drain()
        if succeeded + failed:
            if failed:
                log.warning("lines about calls are missing", **_skipped(succeeded + failed))
            else:
                log.info("lines about calls are missing", **_skipped(succeeded + failed))


def code_of(error: BaseException) -> str:
    """Return the value of the error code for *error*."""
    if isinstance(error, GatewayError):
        code = error.code
    else:
        code = (
            ErrorCode.CANCELLED if isinstance(error, asyncio.CancelledError) else ErrorCode.INTERNAL
        )
    return str(code.value)


def _skipped(count: int) -> dict[str, Any]:
    return {"skipped": count, "skipped_by": LIMIT} if count else {}


def _call_keys(record: CallRecord, error: BaseException | None, reply: object) -> dict[str, Any]:
    context, path = record.context, record.path
    keys = {
        "code": record.code,
        "model": record.model,
        "ms": _ms(record.seconds),
        "version": record.version,
        "kind": record.kind,
        "path": _path_of(record),
        "protocol": context.protocol,
        "route": path.route,
        "target": path.target,
        "endpoint": path.endpoint,
        "attempts": path.attempts_of(record.kind),
        "upstream_ms": _ms(path.upstream_s),
        "queue_ms": _ms(path.queued_s + path.batched_s),
        "request_bytes": _size_of(context),
        "response_bytes": _reply_bytes(reply),
        "limit": record.limit,
        "error": error_text(error) if isinstance(error, GatewayError) else "",
        "rule": error.rule if isinstance(error, AccessDenied) else "",
        "request_id": context.request_id,
        "trace_id": path.trace_id,
        **_client_keys(context.client),
    }
    return _without_empty(keys)


def _rejection_keys(listener: str, protocol: str, error: GatewayError) -> dict[str, Any]:
    keys = {
        "code": error.code.value,
        "model": "" if error.model is None else error.model.name,
        "limit": error.limit,
        "rule": "" if error.limit else type(error).__name__,
        "error": error_text(error),
        "protocol": protocol,
        "listener": listener,
        "request_id": error.request_id,
        **_client_keys(error.client or NO_CLIENT),
    }
    if isinstance(error, Unauthenticated):
        keys |= {"credential": error.credential, **error.shown}
    return _without_empty(keys)


def _client_keys(client: Client) -> dict[str, Any]:
    identity = client.identity
    if identity is ANONYMOUS:
        return {"client": client.address, "agent": client.agent}
    return {
        "client": client.address,
        "client_name": identity.name,
        "credential": identity.credential,
        **identity.shown,
        "agent": client.agent,
    }


def _without_empty(keys: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in keys.items() if value or key == "ms"}


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)


def _reply_bytes(reply: object) -> int:
    """Return the size of a reply's tensors; 0 if counting it would take long."""
    if not isinstance(reply, InferResponse):
        return 0
    sized = all(isinstance(tensor.data, RawData | ArrayData) for tensor in reply.outputs)
    return sum(tensor.nbytes for tensor in reply.outputs) if sized else 0


def _path_of(record: CallRecord) -> str:
    """Return the path of a forwarded request, without its query; "" for a call."""
    origin = record.context.origin
    path: str = ""
    if record.kind == PASSTHROUGH and origin is not None:
        path = getattr(origin.wire, "path", "")
    return path


def _size_of(context: Context) -> int:
    """Return the size of the request's body; 0 if it is unknown."""
    origin = context.origin
    size: int = 0 if origin is None else getattr(origin.wire, "size_bytes", 0)
    return size
