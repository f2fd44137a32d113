"""Load generator for machines without wrk and h2load: aiohttp and grpcio.

    python -m benchmarks.pyload QUESTION-AS-JSON

It needs more CPU than some systems under test, so its requests per second mean little. The CPU time
of the system for each request is still correct.
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
from grpc import aio

Ask = Callable[[], Awaitable[bool]]


async def _main(question: dict[str, Any], body: bytes) -> dict[str, float]:
    make = _http if question["carrier"] == "http" else _grpc
    latencies: list[int] = []
    errors = 0
    started_s = time.perf_counter()
    end = started_s + question["seconds"]

    async def again(ask: Ask) -> None:
        nonlocal errors
        while time.perf_counter() < end:
            start = time.perf_counter_ns()
            errors += not await ask()
            latencies.append((time.perf_counter_ns() - start) // 1000)

    async with AsyncExitStack() as stack:
        asks = [await make(stack, question, body) for _ in range(question["connections"])]
        started_s = time.perf_counter()
        await asyncio.gather(*map(again, asks))
    seconds = time.perf_counter() - started_s
    latencies.sort()
    return {
        "requests": len(latencies),
        "errors": errors,
        "seconds": seconds,
        "p50_us": latencies[len(latencies) // 2],
        "p99_us": latencies[len(latencies) * 99 // 100],
    }


async def _http(stack: AsyncExitStack, question: dict[str, Any], body: bytes) -> Ask:
    # Without Accept-Encoding, as wrk: no system but the gateway would compress the responses.
    session = aiohttp.ClientSession(
        headers=question["fields"], skip_auto_headers=("Accept-Encoding",)
    )
    await stack.enter_async_context(session)
    url = f"http://127.0.0.1:{question['port']}{question['path']}"

    async def ask() -> bool:
        async with session.post(url, data=body) as answer:
            await answer.read()
            return bool(answer.status == 200)

    return ask


async def _grpc(stack: AsyncExitStack, question: dict[str, Any], body: bytes) -> Ask:
    options = [("grpc.use_local_subchannel_pool", 1)]
    address = f"127.0.0.1:{question['port']}"
    channel = await stack.enter_async_context(aio.insecure_channel(address, options))
    call = channel.unary_unary(question["path"])

    async def ask() -> bool:
        try:
            await call(body)
        except aio.AioRpcError:
            return False
        return True

    return ask


if __name__ == "__main__":
    question = json.loads(sys.argv[1])
    print(json.dumps(asyncio.run(_main(question, Path(question["body"]).read_bytes()))))
