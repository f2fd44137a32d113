"""Rules of both HTTP client implementations: header fields, limits and errors of an upstream."""

import ipaddress
import re
import time
from collections.abc import Iterable, Sequence
from functools import lru_cache

from gateway.accelerator import accelerated
from gateway.concurrency.limiter import CLIENT_MEMORY
from gateway.ir import errors
from gateway.ir.context import REQUEST_ID
from gateway.transports.contract import ClientLimits
from gateway.transports.http.content_coding import Inflater, coding_of, inflate
from gateway.transports.http.headers import decode_field, end_to_end, is_writable, safe_value
from gateway.transports.http.timeout_headers import coarse_timeout
from gateway.transports.memory_budget import UNLIMITED, MemoryBudget
from gateway.transports.reservation import Reservation, ResponseReservation
from gateway.wire.http import ExtendedHeaders, Headers, HttpRequest, is_printable_ascii

HEADER_LINE_BYTES = 8190
HEADER_FIELD_BYTES = 32 * 1024
HEADER_COUNT = 100
IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods whose requests may be sent again if no response has arrived."""

SERVER_FAILED = 500
"""After this status a connection is not used again: ASGI servers close it unannounced."""

_KEEP_ALIVE = re.compile(r"\btimeout\s*=\s*(\d{1,9})", re.IGNORECASE)
_CODING = "accept-encoding"
_CODING_CHARS = len(_CODING)
_NO_CODING = "Accept-Encoding: identity\r\n"
_LOOPBACK_CONNECT_S = 1.0
# How much earlier a connection is given up than the server closes it.
_MARGIN_S = 1.0
# More than TLS adds to a record, which has up to 16 KiB.
_TLS_RECORD_BYTES = 32
_TLS_RECORD_BITS = 14
_RATIO = 200
_RATIO_FLOOR_BYTES = 1 << 20
_CHUNKS = 65_536
_CHUNK_BYTES = 1024


class UpstreamErrors:
    """Creates the errors of one upstream, and checks its limits.

    Args:
        name: "host:port".
        host: Name or address.
        limits: The limits of the upstream.
        budget: The memory budget for its responses.

    Attributes:
        reuse_s: Idle time after which a connection carries only requests that may be sent again.
        most_bytes: The largest body of a response.
        has_replied: Whether the server is known to have replied: its port is then the right one.
    """

    def __init__(
        self, name: str, host: str, limits: ClientLimits, budget: MemoryBudget = UNLIMITED
    ) -> None:
        self.name = name
        self._budget = budget
        self._host = host
        self._limits = limits
        self.reuse_s = limits.reuse_s
        self.most_bytes = limits.message_bytes
        self._told_s: float | None = None
        self.has_replied = False

    def note_keep_alive(self, value: str) -> None:
        """Note the shortest idle time that the server tells, less a margin, in place of a guess.

        Args:
            value: Of the field `Keep-Alive`, as in `timeout=5, max=100`.
        """
        found = _KEEP_ALIVE.search(value)
        if found is None:
            return
        idle_s = float(found[1])
        safe_s = max(idle_s - _MARGIN_S, idle_s / 2)
        self._told_s = safe_s if self._told_s is None else min(self._told_s, safe_s)
        self.reuse_s = min(self._told_s, self._limits.keepalive_s)

    def idle_s(self, method: str) -> float:
        """Return how long a connection may have been idle that carries a request of *method*."""
        return self._limits.keepalive_s if method in IDEMPOTENT else self.reuse_s

    @property
    def connect_timeout_s(self) -> float:
        """The timeout for a new connection; at most 1 s on the loopback interface."""
        own = self._limits.connect_timeout_s
        return min(own, _LOOPBACK_CONNECT_S) if _is_loopback(self._host) else own

    def reservation(self) -> Reservation:
        """Return a reservation for a response, in the share of the client that called."""
        return ResponseReservation(self._budget, None, CLIENT_MEMORY.get())

    def accepts_size(self, size: int) -> bool:
        """Return whether a response may have *size* bytes."""
        return size <= self._limits.message_bytes

    def check_chunks(self, chunks: int, size: int) -> None:
        """Check that the body of a response may have *chunks* with *size* bytes together.

        Raises:
            UpstreamProtocolError: There are more than 65,536, and one for each KiB.
        """
        if chunks > _CHUNKS + size // _CHUNK_BYTES:
            raise self.broken(f"a body of {size} bytes in {chunks} chunks")

    def check_size(self, size: int) -> None:
        """Check that a response may have *size* bytes.

        Raises:
            TooLarge: *size* exceeds `message_bytes`.
        """
        if not self.accepts_size(size):
            raise errors.TooLarge(
                f"the response of upstream {self.name} has {size} bytes or more, "
                f"at most {self._limits.message_bytes} are allowed",
                limit="message_bytes",
            )

    async def decode_body(self, body: memoryview, codings: Sequence[str]) -> memoryview:
        """Return *body* without its content coding.

        Raises:
            UpstreamProtocolError: The coding is not supported, or *body* is malformed.
            TooLarge: The decoded body exceeds `message_bytes`.
        """
        try:
            coding = coding_of(codings)
            if coding is None or not body:
                return body
            inflater = Inflater(
                coding, body, self._limits.message_bytes, _RATIO, _RATIO_FLOOR_BYTES
            )
            return await inflate(inflater, _uncounted)
        except (errors.MalformedMessage, errors.Unsupported) as error:
            raise self.broken(f"a body that cannot be decoded: {error.message}") from error

    def broken(self, what: str) -> errors.UpstreamProtocolError:
        """Return the error for a malformed response."""
        return errors.UpstreamProtocolError(f"upstream {self.name} sent {what[:200]}")

    def lost(self, why: object, hint: str = "") -> errors.Unavailable:
        """Return the error for a connection that broke; *hint* says what to change of the URL."""
        text = f"upstream {self.name} broke the connection: {str(why)[:200]}"
        return errors.Unavailable(f"{text}; {hint}" if hint and not self.has_replied else text)

    def unreached(self, why: object) -> errors.ConnectFailure:
        """Return the error for a connection that could not be made."""
        return errors.ConnectFailure(f"cannot connect to upstream {self.name}: {why}")

    def late(self) -> errors.DeadlineExceeded:
        """Return the error for a deadline that has passed."""
        return errors.DeadlineExceeded(
            f"the deadline expired during the request to upstream {self.name}"
        )

    def closed(self) -> errors.NotSent:
        """Return the error for a client that was closed."""
        return errors.NotSent(f"the client of upstream {self.name} is closed")


def header_lines(wire: HttpRequest, left_s: float | None) -> str:
    """Return the header fields of a request as lines, without Host and framing.

    Args:
        wire: The request.
        left_s: The seconds until the deadline, sent as `grpc-timeout`; None for no deadline.
    """
    lines = lines_of(wire.headers)
    if wire.request_id:
        lines = f"{lines}{REQUEST_ID}: {safe_value(wire.request_id)}\r\n"
    if left_s is None:
        return lines
    return f"{lines}grpc-timeout: {coarse_timeout(left_s)}\r\n"


@accelerated
def lines_of(headers: Headers) -> str:
    """Return the lines of *headers*, and one that refuses codings if there is none.

    Codecs use the same few header objects again and again, so their lines are cached with them.
    """
    if type(headers) is not ExtendedHeaders:
        return headers.parsed_with(_lines)
    if any(name.lower() == _CODING for name, _ in headers.more):
        return field_lines(headers.pairs)
    return headers.base.parsed_with(_lines) + field_lines(headers.more, "")


def _lines(headers: Headers) -> str:
    return field_lines(headers.pairs)


@accelerated
def field_lines(pairs: tuple[tuple[str, str], ...], coding: str = _NO_CODING) -> str:
    """Return the lines of a request's fields, and *coding* unless a field accepts codings."""
    lines = ""
    for name, value in pairs:
        begin = begin_of_line(name)
        if begin is None:
            continue
        # As it is sent.
        safe = value if is_printable_ascii(value) else safe_value(value)
        lines = f"{lines}{begin}{safe}\r\n"
        if len(name) == _CODING_CHARS and name.lower() == _CODING:
            coding = ""
    return lines + coding


def header_fields(wire: HttpRequest, deadline: float | None) -> list[tuple[str, str]]:
    """Return the header fields of a request as names and values."""
    lines = header_lines(wire, None if deadline is None else deadline - time.monotonic())
    return [(name, value) for name, _, value in map(_parts, lines.split("\r\n")[:-1])]


def _parts(line: str) -> tuple[str, str, str]:
    return line.partition(": ")


@lru_cache(1024)  # messages repeat the same few names
def begin_of_line(name: str) -> str | None:
    """Return the part of a line before the value; None for a field that is not sent."""
    sent = is_writable(name) and name.lower() not in ("host", "grpc-timeout")
    return f"{name}: " if sent else None


def response_fields(raw: Iterable[tuple[bytes, bytes]]) -> tuple[Headers, list[str]]:
    """Return the fields of a response that are not hop-by-hop, and its content codings."""
    pairs, codings = [], []
    for raw_name, raw_value in raw:
        name, value = decode_field(raw_name), decode_field(raw_value)
        if name.lower() == "content-encoding":
            codings.append(value)
        else:
            pairs.append((name, value))
    return Headers(end_to_end(pairs)), codings


def is_head_unread(unacknowledged: int, body_bytes: int, *, tls: bool) -> bool:
    """Return whether a server that closed its end of a connection has read no complete request.

    Its system has not acknowledged the head, so nothing can have read it.

    Args:
        unacknowledged: Bytes of the request that were not acknowledged when the end arrived.
        body_bytes: Bytes of the request after its head.
        tls: Whether the bytes are encrypted.
    """
    most = body_bytes
    if tls:
        most += _TLS_RECORD_BYTES * ((body_bytes >> _TLS_RECORD_BITS) + 2)
    return unacknowledged > most


async def _uncounted(_size: int) -> None: ...


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
