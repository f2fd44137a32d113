"""Load generator of requests as applications send them, over HTTP/1 and gRPC.

    python -m benchmarks.appload QUESTION-AS-JSON

All requests exist before the first is sent. With a rate they are due at their times (open loop).
The protocols on uvloop look only for the end of a response and for its status, so that the
generator keeps up with the systems under test.
"""

import asyncio
import json
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import uvloop

from benchmarks import applications, messages
from benchmarks.messages import GRPC_METHOD
from benchmarks.traffic import grpc_calls

_STATUS = b"HTTP/1.1 200"
_HEAD_END = b"\r\n\r\n"
_LENGTH = b"content-length:"
_CHUNKED = b"transfer-encoding: chunked"
_DATA, _HEADERS, _SETTINGS, _PING = 0, 1, 4, 6
_END_STREAM, _ACK = 1, 1
_FRAME_BYTES = 9


class Lane(asyncio.Protocol):
    """A connection that sends one request after the other.

    Args:
        requests: Creates its requests.
        take: Takes received bytes; returns the rest after the responses, and how many of them
            ended well and how many badly.
        end: When the last request is sent.
        latencies: Receives microseconds.

    Attributes:
        over: Done after the last response.
        errors: Responses with another status than success.
    """

    def __init__(
        self,
        requests: Iterator[bytes],
        take: Callable[[bytes, Callable[[bytes], None]], tuple[bytes, int, int]],
        end: float,
        latencies: list[int],
    ) -> None:
        self._requests = requests
        self._take = take
        self._end = end
        self._latencies = latencies
        self._buffer = b""
        self._sent_ns = 0
        self._transport: Any = None
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.errors = 0

    def connection_made(self, transport: Any) -> None:
        """Send the first request."""
        self._transport = transport
        self._send()

    def data_received(self, data: bytes) -> None:
        """Look for the end of the response, and send the next request after it."""
        self._buffer, good, bad = self._take(self._buffer + data, self._transport.write)
        if good or bad:
            self._latencies.append((time.perf_counter_ns() - self._sent_ns) // 1000)
            self.errors += bad
            self._send()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # asyncio's
        """Count a connection that was closed too early as an error."""
        if not self.over.done():
            self.errors += 1
            self.over.set_result(None)

    def _send(self) -> None:
        if time.perf_counter() < self._end:
            self._sent_ns = time.perf_counter_ns()
            self._transport.write(next(self._requests))
        elif not self.over.done():
            self.over.set_result(None)
            self._transport.close()


class TimedLane(Lane):
    """A connection whose requests are due at their times, however late the responses are.

    A request that is due before the response to the one before waits for it, and its latency begins
    when it is due.
    """

    def __init__(
        self,
        requests: Iterator[bytes],
        take: Callable[[bytes, Callable[[bytes], None]], tuple[bytes, int, int]],
        end: float,
        latencies: list[int],
    ) -> None:
        super().__init__(requests, take, end, latencies)
        self._due: deque[int] = deque()
        self._is_idle = True
        self._has_ended = False

    def connection_made(self, transport: Any) -> None:
        """Wait for the first request to be due."""
        self._transport = transport

    def on_due(self) -> None:
        """Send a request now, or after the response to the one before."""
        self._due.append(time.perf_counter_ns())
        if self._is_idle:
            self._send()

    def on_end(self) -> None:
        """Close the connection after the last response."""
        self._has_ended = True
        if self._is_idle:
            self._send()

    def _send(self) -> None:
        self._is_idle = not self._due
        if self._due:
            self._sent_ns = self._due.popleft()
            self._transport.write(next(self._requests))
        elif self._has_ended and not self.over.done():
            self.over.set_result(None)
            self._transport.close()


def take_http(data: bytes, _write: Callable[[bytes], None]) -> tuple[bytes, int, int]:
    """Take a response with a length, or in chunks; see `Lane`."""
    end = data.find(_HEAD_END)
    if end < 0:
        return data, 0, 0
    head, at = data[:end].lower(), end + len(_HEAD_END)
    if _CHUNKED in head:
        if not data.endswith(b"0\r\n\r\n"):
            return data, 0, 0
    else:
        _, found, rest = head.partition(_LENGTH)
        size = int(rest.partition(b"\r\n")[0]) if found else 0
        if len(data) < at + size:
            return data, 0, 0
    is_good = data.startswith(_STATUS)
    return b"", int(is_good), int(not is_good)


def take_grpc(data: bytes, write: Callable[[bytes], None]) -> tuple[bytes, int, int]:
    """Take the frames of a call, and answer SETTINGS and PING; see `Lane`.

    A call without a message has failed.
    """
    at, good, bad, has_message = 0, 0, 0, False
    start = 0
    while len(data) - at >= _FRAME_BYTES:
        size = int.from_bytes(data[at : at + 3], "big")
        kind, flags = data[at + 3], data[at + 4]
        stop = at + _FRAME_BYTES + size
        if stop > len(data):
            break
        if kind == _SETTINGS and not flags & _ACK:
            write(b"\0\0\0\x04\x01\0\0\0\0")
        elif kind == _PING and not flags & _ACK:
            write(b"\0\0\x08\x06\x01\0\0\0\0" + data[at + _FRAME_BYTES : stop])
        has_message = has_message or (kind == _DATA and size > 0)
        at = stop
        if kind in (_DATA, _HEADERS) and flags & _END_STREAM:
            good, bad = good + has_message, bad + (not has_message)
            start, has_message = at, False
        elif not has_message and kind not in (_DATA, _HEADERS):
            start = at
    return data[start:], good, bad


def lanes(carrier: str, path: str, kind: str) -> Callable[[int], Iterator[bytes]]:
    """Return what creates the requests of a connection, by its number.

    Args:
        carrier: "http" or "grpc".
        path: Of the request; that of Envoy's transcoder has messages of its form.
        kind: One of `applications.KINDS`, or another word for one request again and again.
    """
    cases = applications.cases(messages.small(), kind)
    if carrier == "grpc":
        bodies = [messages.grpc_request(case).body for case in cases]
        return lambda lane: grpc_calls(
            applications.header_blocks(kind, lane, path or GRPC_METHOD),
            applications.turns(bodies, lane),
        )
    if path.startswith("/v2/"):
        questions = [
            (f"/v2/models/{case.model}/infer", messages.json_request(case)) for case in cases
        ]
    else:
        questions = [(path, messages.transcoder_request(case)) for case in cases]
    return lambda lane: applications.http_heads(kind, lane, questions)


async def _main(question: dict[str, Any]) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    carrier, rate = question["carrier"], question["rate"]
    requests = lanes(carrier, question["path"], question["kind"])
    take = take_grpc if carrier == "grpc" else take_http
    kind = TimedLane if rate else Lane
    latencies: list[int] = []
    prepared = [requests(lane) for lane in range(question["connections"])]
    started_s = time.perf_counter()
    end = started_s + question["seconds"]
    found: list[Lane] = []
    for each in prepared:
        _, lane = await loop.create_connection(
            lambda each=each: kind(each, take, end, latencies),  # type: ignore[misc]  # mypy: lambdas' defaults
            "127.0.0.1",
            question["port"],
        )
        found.append(lane)
    timed = [lane for lane in found if isinstance(lane, TimedLane)]
    if timed:
        await _fall_due(timed, len(timed) / rate, end)
    await asyncio.gather(*(lane.over for lane in found))
    seconds = time.perf_counter() - started_s
    errors = sum(lane.errors for lane in found)
    if rate:
        return {"latencies": latencies, "errors": errors}
    latencies.sort()
    return {
        "requests": len(latencies),
        "errors": errors,
        "seconds": seconds,
        "p50_us": latencies[len(latencies) // 2] if latencies else 0,
        "p99_us": latencies[len(latencies) * 99 // 100] if latencies else 0,
    }


async def _fall_due(lanes: Sequence[TimedLane], period_s: float, end: float) -> None:
    """Let one request of each connection be due in each period, all at the same moment."""
    at = time.perf_counter()
    while at < end:
        for lane in lanes:
            lane.on_due()
        at += period_s
        await asyncio.sleep(max(0.0, min(at, end) - time.perf_counter()))
    for lane in lanes:
        lane.on_end()


if __name__ == "__main__":
    print(json.dumps(uvloop.run(_main(json.loads(sys.argv[1])))))
