"""What walks of real objects share: tables that note their use, states that are watched, a peer."""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
)
from functools import partial
from typing import Any

from structlog.testing import capture_logs

from gateway.ir.errors import GatewayError
from gateway.transports.contract import GrpcFrontend, HttpFrontend, StreamFrontend
from gateway.transports.memory_budget import MessagesOnTheirWay
from gateway.wire.grpc import GrpcRequest, GrpcResponse, GrpcStatus
from gateway.wire.http import HttpRequest, HttpResponse
from gateway.wire.stream import Frame
from tests.simulation.virtual_time import elapse, simulate


class Rows(Mapping[Any, Any]):
    """A table of transitions that notes which of its rows were used, and where the last one led.

    Args:
        rows: The table.
        direct: Events whose steps hot code takes without the table.
    """

    def __init__(self, rows: Mapping[Any, Any], direct: Iterable[Any] = ()) -> None:
        self._rows = rows
        self._direct = frozenset(direct)
        self.used: set[Any] = set()
        self.last: Any = None

    def __getitem__(self, row: Any) -> Any:
        self.last = self._rows[row]
        self.used.add(row)
        return self.last

    def __iter__(self) -> Iterator[Any]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def step(self, before: Any, after: Any) -> None:
        """Judge that a state was assigned: by the row that was looked up, or by a direct event."""
        looked_up, self.last = self.last, None
        if before is after or looked_up is after:
            return
        rows = {
            (state, event)
            for (state, event), target in self._rows.items()
            if state is before and target is after and event in self._direct
        }
        assert rows, f"no event leads from {before} to {after}"
        self.used |= rows


class WatchedState:
    """Stands for an attribute with a state, and has each assignment judged by its table.

    Args:
        kind: The class with the attribute.
        name: The attribute.
        rows: The table.
        first: States in which an object begins.
    """

    def __init__(self, kind: type[Any], name: str, rows: Rows, first: Iterable[Any]) -> None:
        self._slot = inspect.getattr_static(kind, name, None)
        self._name = name
        self._rows = rows
        self._first = tuple(first)

    def __get__(self, one: Any, _kind: type[Any] | None = None) -> Any:
        if one is None:  # of the class: compiled code looks up where its objects have the slot
            return self._slot
        if self._slot is not None:
            return self._slot.__get__(one)
        return vars(one)[self._name]

    def __set__(self, one: Any, after: Any) -> None:
        try:
            before = self.__get__(one)
        except (AttributeError, KeyError):
            assert after in self._first
        else:
            self._rows.step(before, after)
        if self._slot is not None:
            self._slot.__set__(one, after)
        else:
            vars(one)[self._name] = after


class Peer(asyncio.Transport):
    """The transport of a connection whose peer is the test; losing it is told in the next turn."""

    def __init__(self, connection: Any) -> None:
        super().__init__({"peername": ("192.0.2.1", 1)})
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._is_paused = False
        self._closing = False
        self._reads = True
        self.lost = False
        connection.connection_made(self)

    def receive(self, data: bytes, *, end: bool = False) -> None:
        """Give *data* to the connection, as a loop does, unless it does not read; then the end."""
        self._give(data)
        if end:
            self.end()

    def _give(self, data: bytes) -> None:
        if self._closing or not self._reads:
            return
        connection = self._connection
        if not hasattr(connection, "get_buffer"):
            connection.data_received(data)
            return
        while data and not self._closing:
            room = connection.get_buffer(-1)
            size = min(len(room), len(data))
            room[:size] = data[:size]
            connection.buffer_updated(size)
            data = data[size:]

    def end(self) -> None:
        """Tell the connection that its client sends no more."""
        if not self._closing and self._reads:
            self._reads = False
            if not self._connection.eof_received():
                self.close()

    def pause(self) -> None:
        """Let the write buffer be full."""
        if not self._is_paused and not self._closing:
            self._is_paused = True
            self._connection.pause_writing()

    def resume(self) -> None:
        """Let the write buffer be empty."""
        if self._is_paused and not self._closing:
            self._is_paused = False
            self._connection.resume_writing()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._connection = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._connection  # type: ignore[no-any-return]  # it was given as any

    def write(self, data: Any) -> None: ...

    def writelines(self, list_of_data: Iterable[Any]) -> None: ...

    def write_eof(self) -> None: ...

    def can_write_eof(self) -> bool:
        return True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 1 if self._is_paused else 0

    def pause_reading(self) -> None:
        self._reads = False

    def resume_reading(self) -> None:
        self._reads = True

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._loop.call_soon(self._lose)

    abort = close

    def _lose(self) -> None:
        self.lost = True
        self._connection.connection_lost(None)


class _Moody:
    """A frontend that replies, waits, or has a bug, as it is told."""

    def __init__(self, choose: Callable[[list[str]], str]) -> None:
        self._choose = choose

    async def _mood(self) -> int:
        """Return how many replies there are, some time later."""
        await elapse(float(self._choose(["0", "0", "0.001", "5", "500"])))
        mood = self._choose(["reply", "reply", "reply", "fail", "many"])
        if mood == "fail":
            raise ZeroDivisionError
        return 3 if mood == "many" else 1


class MoodyHttp(_Moody, HttpFrontend):
    """One for HTTP."""

    async def __call__(self, _wire: HttpRequest, /) -> AsyncGenerator[HttpResponse, None]:
        for _ in range(await self._mood()):
            yield HttpResponse(200, body=(b"x" * 100,))
            await elapse(0.01)

    def reject(self, error: GatewayError, /) -> HttpResponse:
        return HttpResponse(503, body=(error.message.encode(),))


class MoodyGrpc(_Moody, GrpcFrontend):
    """One for gRPC."""

    async def __call__(self, _wire: GrpcRequest, /) -> AsyncGenerator[GrpcResponse, None]:
        for _ in range(await self._mood()):
            yield GrpcResponse((b"x" * 100,))

    async def session(
        self, wires: AsyncIterator[GrpcRequest], _limits: Any, /
    ) -> AsyncGenerator[GrpcResponse, None]:
        async for wire in wires:
            async for reply in self(wire):
                yield reply

    def reject(self, error: GatewayError, /) -> GrpcResponse:
        return GrpcResponse(status=GrpcStatus.UNAVAILABLE, details=error.message)


class MoodyStream(_Moody, StreamFrontend):
    """One for frames."""

    async def __call__(self, wire: Frame, /) -> AsyncGenerator[Frame, None]:
        for _ in range(await self._mood()):
            yield Frame((b"x" * 100,), wire.correlation)

    def reject(self, error: GatewayError, /) -> Frame:
        return Frame((error.message.encode(),))


def walk(take: Callable[[random.Random], Coroutine[Any, Any, None]], times: int) -> None:
    """Take a walk with each of so many seeds, in virtual time."""
    with capture_logs():
        for seed in range(times):
            drawn = random.Random(seed)  # noqa: S311  # not a secret
            try:
                simulate(partial(take, drawn))
            except BaseException as error:
                error.add_note(f"seed {seed}")
                raise


async def assert_nothing_left() -> None:
    """Assert that no task goes on and no timer runs, but that of the budget of the process."""
    loop: Any = asyncio.get_running_loop()
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    timers = [
        each
        for each in loop._scheduled  # there is no other way to them
        if not each.cancelled() and not isinstance(each._callback.__self__, MessagesOnTheirWay)
    ]
    assert not tasks, f"tasks go on: {tasks}"
    assert not timers, f"timers run: {timers}"
