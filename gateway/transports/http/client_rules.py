"""What any make of an HTTP client does alike: which fields go and come, and what went wrong."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Iterable, Sequence
from functools import lru_cache

from gateway.ir.context import REQUEST_ID
from gateway.ir.errors import (
    DeadlineExceeded,
    MalformedMessage,
    NotSent,
    TooLarge,
    Unavailable,
    Unsupported,
    UpstreamProtocolError,
)
from gateway.transports.admission import CLIENT_MEMORY, UNLIMITED, MemoryBudget, Reservation
from gateway.transports.contract import ClientLimits
from gateway.transports.http.content_coding import Inflater, coding_of, inflate
from gateway.transports.http.headers import decode_field, end_to_end, is_writable, safe_value
from gateway.transports.http.timeout_headers import coarse_timeout
from gateway.wire.http import Headers, HttpRequest

HEADER_LINE_BYTES = 8190
HEADER_FIELD_BYTES = 32 * 1024
HEADER_COUNT = 100
IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that may be sent once more when nothing came back."""

_CODING = "accept-encoding"
_CODING_CHARS = len(_CODING)
_LOOPBACK_CONNECT_S = 1.0
_RATIO = 200
_RATIO_FLOOR_BYTES = 1 << 20


class UpstreamErrors:
    """One upstream: its name in errors, and its limits.

    Args:
        name: "host:port".
        host: Name or address.
        limits: Of the upstream.
        budget: Of the process, for what it sends.
    """

    def __init__(
        self, name: str, host: str, limits: ClientLimits, budget: MemoryBudget = UNLIMITED
    ) -> None:
        self.name = name
        self._budget = budget
        self._host = host
        self._limits = limits

    @property
    def connect_timeout_s(self) -> float:
        """How long a connection may take; a peer on this machine that does not answer is gone."""
        own = self._limits.connect_timeout_s
        return min(own, _LOOPBACK_CONNECT_S) if _is_loopback(self._host) else own

    def reservation(self) -> Reservation:
        """Return what may hold a response, in the share of the client that asked for it."""
        return Reservation(self._budget, self._limits.memory_wait_s, CLIENT_MEMORY.get())

    def accepts_size(self, size: int) -> bool:
        """Return whether an answer may have *size* bytes."""
        return size <= self._limits.message_bytes

    def check_size(self, size: int) -> None:
        """Refuse an answer of *size* bytes or more, if that is too many.

        Raises:
            TooLarge: It is.
        """
        if not self.accepts_size(size):
            raise TooLarge(
                f"the answer of upstream {self.name} has {size} bytes or more, "
                f"at most {self._limits.message_bytes} are allowed",
                limit="message_bytes",
            )

    async def decode_body(self, body: memoryview, codings: Sequence[str]) -> memoryview:
        """Return *body* without its content coding.

        Raises:
            UpstreamProtocolError: It is not of its coding, or of one we do not know.
            TooLarge: It inflates too far.
        """
        try:
            coding = coding_of(codings)
            if coding is None or not body:
                return body
            inflater = Inflater(
                coding, body, self._limits.message_bytes, _RATIO, _RATIO_FLOOR_BYTES
            )
            return await inflate(inflater, _uncounted)
        except (MalformedMessage, Unsupported) as error:
            raise self.broken(f"a body that cannot be decoded: {error.message}") from error

    def broken(self, what: str) -> UpstreamProtocolError:
        """Return the error for an answer that is wrong."""
        return UpstreamProtocolError(f"upstream {self.name} sent {what[:200]}")

    def lost(self, why: object) -> Unavailable:
        """Return the error for a connection that broke."""
        return Unavailable(f"upstream {self.name} broke the connection: {str(why)[:200]}")

    def unreached(self, why: object) -> NotSent:
        """Return the error for a connection that could not be made."""
        return NotSent(f"cannot connect to upstream {self.name}: {why}")

    def late(self) -> DeadlineExceeded:
        """Return the error for a deadline that has passed."""
        return DeadlineExceeded(f"the deadline passed while upstream {self.name} was asked")

    def closed(self) -> NotSent:
        """Return the error for a client that was closed."""
        return NotSent(f"the client of upstream {self.name} is closed")


def sent_lines(wire: HttpRequest, left_s: float | None) -> str:
    """Return the fields of a request as lines of its head, Host and framing left out.

    Args:
        wire: The request.
        left_s: What is left of time, which is said; None for no deadline.
    """
    lines = wire.headers.parsed_with(_lines)
    if wire.request_id:
        lines = f"{lines}{REQUEST_ID}: {safe_value(wire.request_id)}\r\n"
    if left_s is None:
        return lines
    return f"{lines}grpc-timeout: {coarse_timeout(left_s)}\r\n"


def _lines(headers: Headers) -> str:
    """Return what `sent_lines` says of the fields alone; codecs give the same few each time."""
    lines = ""
    coding = "Accept-Encoding: identity\r\n"
    for name, value in headers.pairs:
        begin = _begin_of_line(name)
        if begin is None:
            continue
        if not (value.isascii() and value.isprintable()):
            value = safe_value(value)  # noqa: PLW2901  # as it is sent
        lines = f"{lines}{begin}{value}\r\n"
        if len(name) == _CODING_CHARS and name.lower() == _CODING:
            coding = ""
    return lines + coding


def sent_fields(wire: HttpRequest, deadline: float | None) -> list[tuple[str, str]]:
    """Return what `sent_lines` does, as names and values."""
    lines = sent_lines(wire, None if deadline is None else deadline - time.monotonic())
    return [(name, value) for name, _, value in map(_parts, lines.split("\r\n")[:-1])]


def _parts(line: str) -> tuple[str, str, str]:
    return line.partition(": ")


@lru_cache(1024)  # the same few names, message for message
def _begin_of_line(name: str) -> str | None:
    """Return what stands before the value of a field; None for one that is not sent on."""
    sent = is_writable(name) and name.lower() not in ("host", "grpc-timeout")
    return f"{name}: " if sent else None


def answer_fields(raw: Iterable[tuple[bytes, bytes]]) -> tuple[Headers, list[str]]:
    """Return the fields of an answer that cross a hop, and its content codings."""
    pairs, codings = [], []
    for raw_name, raw_value in raw:
        name, value = decode_field(raw_name), decode_field(raw_value)
        if name.lower() == "content-encoding":
            codings.append(value)
        else:
            pairs.append((name, value))
    return Headers(end_to_end(pairs)), codings


async def _uncounted(_size: int) -> None: ...


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
