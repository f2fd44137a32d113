"""A client that cancels calls, or lets their deadlines pass: `ADDRESS COUNT SECONDS`.

It reads the request from standard input. SECONDS is the deadline of each call; 0 cancels it. It is
a process of its own, because the threads of grpcio do not always end after such calls.
"""

from __future__ import annotations

import asyncio
import os
import sys

import grpc

INFER = "/inference.GRPCInferenceService/ModelInfer"
LONGEST_S = 10.0
STAY_S = 0.001
"""A call is cancelled after this time, when the server may have begun it."""


async def storm(address: str, count: int, deadline_s: float, request: bytes) -> None:
    """Send *count* calls, and wait until all have ended."""
    async with grpc.aio.insecure_channel(address) as opened:
        method, calls = opened.unary_unary(INFER), []
        for _ in range(count):
            calls.append(method(request, timeout=deadline_s or LONGEST_S))
            if not deadline_s:
                await asyncio.sleep(STAY_S)
                calls[-1].cancel()
        async with asyncio.timeout(LONGEST_S):
            await asyncio.gather(*calls, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(storm(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.stdin.buffer.read()))
    os._exit(0)
