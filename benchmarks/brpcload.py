"""Load generator for brpc: a number of connections, with one request at a time on each.

    python -m benchmarks.brpcload QUESTION-AS-JSON

It uses plain protocols on uvloop that parse only the length of a frame. A response counts as an
error if its length differs from that of the first one.
"""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.grps import bytes_of_frame


class Asking(asyncio.Protocol):
    """A connection that sends a request again after each response, until the end."""

    def __init__(self, frame: bytes, end: float, latencies: list[int]) -> None:
        self._frame = frame
        self._end = end
        self._latencies = latencies
        self._buffer = b""
        self._asked_ns = 0
        self._size = 0
        self._transport: Any = None
        self.errors = 0
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._ask()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        needed = bytes_of_frame(self._buffer)
        if needed == 0 or len(self._buffer) < needed:
            return
        self._latencies.append((time.perf_counter_ns() - self._asked_ns) // 1000)
        self._size = self._size or needed
        self.errors += len(self._buffer) != self._size
        self._buffer = b""
        if time.perf_counter() < self._end:
            self._ask()
        else:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.errors += exc is not None or time.perf_counter() < self._end
        self.over.set_result(None)

    def _ask(self) -> None:
        self._asked_ns = time.perf_counter_ns()
        self._transport.write(self._frame)


async def _main(question: dict[str, Any], frame: bytes) -> dict[str, float]:
    loop = asyncio.get_running_loop()
    latencies: list[int] = []
    started_s = time.perf_counter()
    end = started_s + question["seconds"]
    asking = []
    for _ in range(question["connections"]):
        _, protocol = await loop.create_connection(
            lambda: Asking(frame, end, latencies), "127.0.0.1", question["port"]
        )
        asking.append(protocol)
    await asyncio.gather(*(each.over for each in asking))
    seconds = time.perf_counter() - started_s
    latencies.sort()
    return {
        "requests": len(latencies),
        "errors": sum(each.errors for each in asking),
        "seconds": seconds,
        "p50_us": latencies[len(latencies) // 2],
        "p99_us": latencies[len(latencies) * 99 // 100],
    }


if __name__ == "__main__":
    question = json.loads(sys.argv[1])
    print(json.dumps(uvloop.run(_main(question, Path(question["body"]).read_bytes()))))
