"""Parts of a gateway as steps with a cost, and the layers below a service.

A step runs a number of times. Its cost is CPU time, the minimum of many short batches.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from benchmarks.messages import GRPC_METHOD
from gateway.wire.grpc import GrpcRequest

LANES = 32
_BATCH_S = 0.01
_BELOW = ("_inner", "_settled", "_routes", "_upstreams", "targets", "_targets", "endpoints")
"""Where a layer keeps what it asks."""

Step = Callable[[int], Awaitable[None]]
"""Does what is measured so many times."""


class Echo(asyncio.Protocol):
    """Responds to any bytes with the same bytes."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, _data: bytes) -> None:
        self._transport.write(self._answer)


class Quick:
    """A client that has the response to an inference already.

    Args:
        client: Handles everything else, such as probes.
        answer: Creates the response.

    Attributes:
        wires: The last requests.
    """

    def __init__(self, client: Any, answer: Callable[[], Any]) -> None:
        self._client = client
        self._answer = answer
        self.wires: deque[Any] = deque(maxlen=LANES)

    async def send(self, wire: Any, /, *, deadline: float | None, decode: Any = None) -> Any:
        target = wire.method if isinstance(wire, GrpcRequest) else wire.path
        if target == GRPC_METHOD or target.endswith("/infer"):
            self.wires.append(wire)
            return self._answer() if decode is None else decode(self._answer())
        return await self._client.send(wire, deadline=deadline, decode=decode)


def asking(upstream: Any, client: Any, step: Step) -> Step:
    """Return *step*, with *client* as the client of *upstream* while it runs."""

    async def run(count: int) -> None:
        before = upstream._client  # noqa: SLF001  # to look inside
        upstream._client = client  # noqa: SLF001
        try:
            await step(count)
        finally:
            upstream._client = before  # noqa: SLF001

    return run


def chain(service: Any) -> Iterator[Any]:
    """Yield *service* and the services below it, down to the upstream or the model."""
    found: Any = service
    while found is not None:
        yield found
        found = next(filter(None, (_below(found, name) for name in _BELOW)), None)


def _below(service: Any, name: str) -> Any:
    value = getattr(service, name, None)
    if isinstance(value, dict):
        value = next(iter(value.values()), None)
    elif isinstance(value, list | tuple):
        value = next(iter(value), None)
    value = getattr(value, "service", value)
    value = getattr(value, "__self__", value)  # of a bound method
    return value if callable(value) else None


def awaited(ask: Callable[[], Awaitable[Any]]) -> Step:
    """Return a step that runs as many tasks as there are lanes."""

    async def lane(count: int) -> None:
        for _ in range(count):
            await ask()

    async def run(count: int) -> None:
        await asyncio.gather(*(lane(count // LANES) for _ in range(LANES)))

    return run


def called(step: Callable[[], object]) -> Step:
    async def run(count: int) -> None:
        for _ in range(count):
            step()

    return run


async def tasks(count: int) -> None:
    """Create tasks that each wait for a future of their own."""
    loop = asyncio.get_running_loop()
    for _ in range(count // LANES):
        futures = [loop.create_future() for _ in range(LANES)]
        waiting = [loop.create_task(_waits(future)) for future in futures]
        await asyncio.sleep(0)
        for future in futures:
            future.set_result(None)
        await asyncio.wait(waiting)


async def _waits(future: asyncio.Future[None]) -> None:
    await future


async def least(steps: dict[str, Step], batches: int) -> dict[str, float]:
    """Return the microseconds of each step: the minimum of its batches, which take turns."""
    counts = {}
    for name, step in steps.items():
        await step(LANES)
        once = await _seconds(step, LANES)
        counts[name] = LANES * max(1, round(_BATCH_S / once / LANES))
    found = dict.fromkeys(steps, float("inf"))
    for _ in range(batches):
        for name, step in steps.items():
            found[name] = min(found[name], await _seconds(step, counts[name]))
    return {name: seconds * 1e6 for name, seconds in found.items()}


async def _seconds(step: Step, count: int) -> float:
    started_s = time.process_time()
    await step(count)
    return (time.process_time() - started_s) / count
