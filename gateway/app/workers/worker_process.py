"""A worker as its supervisor sees it: a process, and the line to it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Mapping
from typing import Any, Final, Protocol

from gateway.app.workers.channel import Orders, WorkerChannel, open_channel
from gateway.telemetry.aggregation import Figures

MODULE: Final = "gateway.app.workers.worker"
_ANSWER_S: Final = 1.0


class WorkerProcess(Protocol):
    """A worker.

    Attributes:
        pid: Of its process.
        figures: What it last said it had counted.
    """

    pid: int
    figures: Figures

    async def started(self) -> Mapping[str, str] | str:
        """Wait until it listens and return where; or what kept it from starting."""
        ...

    async def ready(self) -> bool:
        """Ask whether it takes requests; one that does not answer soon does not."""
        ...

    async def count(self) -> None:
        """Ask for its figures; one that does not answer soon keeps those it gave."""
        ...

    def stop(self) -> None:
        """Tell it to finish what is in flight, and end."""
        ...

    def kill(self) -> None:
        """End it at once."""
        ...

    async def wait(self) -> int:
        """Wait for its end and return the exit status, negative for a signal."""
        ...


async def launch(orders: Orders) -> SpawnedWorker:
    """Start a worker in a new process; the one that calls is not copied, only its environment."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",  # the folder we are in is not among those that modules come from
            "-m",
            MODULE,
            f"{orders.seat.number}/{orders.seat.count}",
            str(theirs.fileno()),
            stdin=asyncio.subprocess.DEVNULL,
            pass_fds=(theirs.fileno(), *orders.sockets.values()),
            # What a terminal sends to all of a group is the supervisor's to pass on, once.
            process_group=0,
            # Models may come from wherever this process would find them.
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
        )
    channel = await open_channel(ours)
    channel.order(orders)
    return SpawnedWorker(process, channel)


class SpawnedWorker:
    """A worker in a process of its own; see `Child`.

    Args:
        process: It.
        channel: The line to it, over which it has had its orders.
    """

    def __init__(self, process: asyncio.subprocess.Process, channel: WorkerChannel) -> None:
        self.pid = process.pid
        self.figures: Figures = ()
        self._process = process
        self._channel = channel
        self._questions: dict[int, asyncio.Future[Any]] = {}
        self._numbers = 0
        self._said: asyncio.Future[Mapping[str, str] | str] = (
            asyncio.get_running_loop().create_future()
        )
        self._listening = asyncio.create_task(self._listen())

    async def started(self) -> Mapping[str, str] | str:
        """Wait until it listens and return where; or what kept it from starting."""
        return await asyncio.shield(self._said)

    async def ready(self) -> bool:
        """Ask whether it takes requests; one that does not answer soon does not."""
        return bool(await self._ask("ready"))

    async def count(self) -> None:
        """Ask for its figures; one that does not answer soon keeps those it gave."""
        await self._ask("figures")

    def stop(self) -> None:
        """Tell it to finish what is in flight, and end."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once."""
        self._signal(signal.SIGKILL)

    async def wait(self) -> int:
        """Wait for its end and return the exit status, negative for a signal."""
        status = await self._process.wait()
        await self._listening
        await self._channel.close()
        return status

    async def _ask(self, what: str) -> Any:
        self._numbers += 1
        number = self._numbers
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._questions[number] = answer
        self._channel.send({"ask": what, "number": number})
        try:
            async with asyncio.timeout(_ANSWER_S):
                return await answer
        except TimeoutError:
            return None
        finally:
            del self._questions[number]

    async def _listen(self) -> None:
        while (message := await self._channel.receive()) is not None:
            if "figures" in message:
                self.figures = message["figures"]
            if "started" in message:
                self._say(message["started"])
            elif "failed" in message:
                self._say(str(message["failed"]))
            answer = self._questions.get(message.get("number", 0))
            if answer is not None and not answer.done():
                answer.set_result(message.get("ready"))
        for answer in self._questions.values():
            if not answer.done():
                answer.set_result(None)
        status = await self._process.wait()
        self._say(f"worker process {self.pid} {ending(status)} before it was ready")

    def _say(self, said: Mapping[str, str] | str) -> None:
        if not self._said.done():
            self._said.set_result(said)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)


def ending(status: int) -> str:
    """Return in words how a process ended."""
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:  # a real-time signal has no name
        return f"was ended by signal {-status}"
