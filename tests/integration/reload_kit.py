"""A gateway that is reloaded while clients of several protocols call it, and the servers behind it.

The servers run in this process and note each call. The model of server number N adds N to its
input, so that a reply shows which server made it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Self

import numpy as np

from gateway.app import Connected, Gateway, connect
from gateway.backends.base import Job
from gateway.backends.python import declares
from gateway.config.load import load_text
from gateway.ir.calls import InferRequest, StreamInferRequest
from gateway.ir.context import Context, ModelRef, Need
from gateway.ir.metadata import TensorMetadata
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import array_tensor, as_numpy
from gateway.policies.complete.policy import Complete
from gateway.settings.units import parse_url
from tests.integration import workers_kit
from tests.integration.cli_kit import Running, serving
from tests.integration.http_kit import eventually

PATIENCE_S = 45.0

_IN = TensorMetadata("IN", Datatype.INT32, (1,))
_OUT = TensorMetadata("OUT", Datatype.INT32, (1,))
_WHOLE = frozenset({Need.NAMES, Need.DATATYPES, Need.SHAPES})
# Inputs are multiples of this, so that the rest of an answer is the number of its server.
STEP = 100

CALLS: list[tuple[int, int]] = []
"""Number of the server and the input of each call that the models `add` ran."""


def _add(number: int) -> Any:
    @declares(inputs=(_IN,), outputs=(_OUT,))
    async def add(inputs: dict[str, Any]) -> dict[str, Any]:
        CALLS.append((number, int(inputs["IN"][0])))
        await asyncio.sleep(0.002)
        return {"OUT": inputs["IN"] + np.int32(number)}

    return add


def _count(number: int) -> Any:
    @declares(inputs=(_IN,), outputs=(_OUT,))
    async def count(inputs: dict[str, Any], job: Job) -> AsyncIterator[dict[str, Any]]:
        pause_s = int(job.parameters.get("pause_ms", 10)) / 1000
        for index in range(int(inputs["IN"][0])):
            yield {"OUT": np.array([index * STEP + number], np.int32)}
            await asyncio.sleep(pause_s)

    return count


@declares(inputs=(_IN,), outputs=(_OUT,))
class Instance:
    """Returns a random number that each loaded instance has of its own."""

    def __init__(self) -> None:
        self._number = np.random.default_rng().integers(1, 1 << 30, (1,), np.int32)

    def __call__(self, _inputs: dict[str, Any]) -> dict[str, Any]:
        """Return the number."""
        return {"OUT": self._number}


add_1, add_2, add_3, add_4 = map(_add, (1, 2, 3, 4))
count_1, count_2, count_3, count_4 = map(_count, (1, 2, 3, 4))

SERVER = """
version: 1
listeners: [{{http: "127.0.0.1:0", grpc: "127.0.0.1:0"}}]
admin: {{address: null, metrics: null}}
lifecycle: {{pre_stop: 0s, drain: 1s}}
models:
  add: {{backend: python, options: {{callable: "tests.integration.reload_kit:add_{number}"}}}}
  count: {{backend: python, options: {{callable: "tests.integration.reload_kit:count_{number}"}}}}
  sum: {{backend: python, options: {{callable: "gateway.backends.examples:SequenceSum"}},
        signature: {{stateful: true}}}}
"""

HEAD = """
version: 1
workers: {workers}
listeners:
  - http: "127.0.0.1:0"
    grpc: "127.0.0.1:0"
    streams: [{{protocol: grps, address: "127.0.0.1:0"}}]
admin: {{address: "127.0.0.1:0", metrics: null}}
lifecycle: {{pre_stop: 0s, drain: 10s}}
telemetry: {{log: {{calls_per_second: 0}}}}
"""


@asynccontextmanager
async def servers(count: int) -> AsyncIterator[dict[int, str]]:
    """Run servers 1 to *count*, and yield their gRPC addresses by number."""
    found: dict[int, Gateway] = {}
    try:
        for number in range(1, count + 1):
            found[number] = Gateway(load_text(SERVER.format(number=number)))
            await found[number].start()
        yield {number: server.addresses["main.grpc"] for number, server in found.items()}
    finally:
        for server in found.values():
            await server.stop()


class Reloaded:
    """A gateway in a process of its own, and its configuration file.

    Args:
        running: The process.
        path: The file.
    """

    def __init__(self, running: Running, path: Path) -> None:
        self.running = running
        self.path = path

    def url(self, scheme: str) -> str:
        """Return the URL for `oip+http`, `oip+grpc` or `grps+brpc`."""
        names = {"oip+http": "main.http", "oip+grpc": "main.grpc", "grps+brpc": "main.grps.brpc"}
        return f"{scheme}://{self.running.addresses[names[scheme]]}"

    def admin(
        self, method: str, path: str, headers: dict[str, str] | None = None, body: str = ""
    ) -> tuple[int, Any]:
        """Send a request to the admin port and return status and document."""
        address = self.running.addresses["admin"]
        with closing(HTTPConnection(address, timeout=PATIENCE_S)) as connection:
            connection.request(method, path, body or None, headers or {})
            response = connection.getresponse()
            text = response.read().decode()
        is_json = response.headers.get("Content-Type") == "application/json"
        return response.status, json.loads(text) if is_json else text

    async def reload(self, text: str) -> tuple[int, Any]:
        """Write another configuration and reload it."""
        await asyncio.to_thread(self.path.write_text, text)
        return await asyncio.to_thread(self.admin, "POST", "/reload")

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the log lines of one event; see `workers_kit.events`."""
        return workers_kit.events(self.running, name)


@contextmanager
def reloadable(path: Path, text: str) -> Iterator[Reloaded]:
    """Run a gateway of a configuration file with *text*."""
    path.write_text(text)
    with serving(str(path), patience_s=PATIENCE_S) as running:
        yield Reloaded(running, path)


@asynccontextmanager
async def reloadable_beside(path: Path, text: str) -> AsyncIterator[Reloaded]:
    """Run a gateway as `reloadable` does, while servers of this event loop go on."""
    context = reloadable(path, text)
    gateway = await asyncio.to_thread(context.__enter__)
    try:
        yield gateway
    finally:
        await asyncio.to_thread(context.__exit__, None, None, None)


def upstream_routes(addresses: dict[int, str], number: int) -> str:
    """Return the part of a configuration in which every model is at one server."""
    return (
        f'upstreams: {{server-{number}: {{url: "oip+grpc://{addresses[number]}"}}}}\n'
        f"routes: [{{name: all, targets: [{{upstream: server-{number}}}]}}]\n"
    )


def infer_request(model: str, value: int, **context: Any) -> InferRequest:
    """Return a call of *model* with one number."""
    tensor = array_tensor("IN", np.array([value], np.int32))
    deadline = time.monotonic() + PATIENCE_S
    return InferRequest(
        model=ModelRef(model),
        inputs=(tensor,),
        context=Context(needs=_WHOLE, deadline=deadline, **context),
    )


class Load:
    """Clients that send one call after another, and compare each reply with its call.

    No two calls have the same input, so that it is known which server ran a call, and how often.
    The time when a call began counts, not when a server ran it: a call that began before a reload
    was confirmed may wait in a queue for any time on a busy machine.

    Args:
        gateway: Where they send them.
        schemes: The protocols; each has its own clients.
        clients: The number of clients of each protocol.
        first: The number of the server in force at first.

    Attributes:
        answered: The number of right replies.
        wrong: The errors and wrong replies.
    """

    def __init__(
        self, gateway: Reloaded, schemes: tuple[str, ...], clients: int = 2, first: int = 1
    ) -> None:
        self._gateway = gateway
        self._schemes = schemes
        self._clients = clients
        # The servers that were put in force, and how many of them are confirmed.
        self._history = [first]
        self._confirmed = 0
        self._inputs = itertools.count(STEP, STEP)
        # By the input of a call: the first server that may run it.
        self._first: dict[int, int] = {}
        self._ran: set[int] = set()
        self._is_over = False
        self._tasks: list[asyncio.Task[None]] = []
        self._connected: list[Connected] = []
        self.answered = 0
        self.wrong: list[str] = []

    async def __aenter__(self) -> Self:
        CALLS.clear()
        for scheme in self._schemes:
            connected = connect(parse_url(self._gateway.url(scheme)))
            self._connected.append(connected)
            service = Complete(connected.service, connected.needs)
            self._tasks += [
                asyncio.create_task(self._ask(scheme, service)) for _ in range(self._clients)
            ]
            if scheme == "oip+grpc":
                self._tasks.append(asyncio.create_task(self._stream(service)))
        return self

    async def __aexit__(self, *_details: object) -> None:
        self._is_over = True
        await asyncio.gather(*self._tasks)
        for connected in self._connected:
            await connected.close()
        self._check_servers()

    async def reaches(self, count: int, patience_s: float = PATIENCE_S) -> None:
        """Wait for so many replies, or for one that is wrong."""
        await eventually(lambda: self.answered >= count or bool(self.wrong), patience_s)

    async def send_to(self, number: int, text: str) -> None:
        """Reload a configuration whose only server is *number*, and wait for calls with it."""
        self._history.append(number)
        status, document = await self._gateway.reload(text)
        assert status == 200, document
        self._confirmed = len(self._history) - 1
        await self.reaches(self.answered + 20)
        self._check_servers()

    async def _ask(self, scheme: str, service: Any) -> None:
        while not self._is_over:
            value, first = next(self._inputs), self._confirmed
            self._first[value] = first
            try:
                reply = await service(infer_request("add", value))
            except Exception as error:  # noqa: BLE001  # whatever it is, the call is lost
                self.wrong.append(f"{scheme}: {error!r}")
                return
            self._check(scheme, int(as_numpy(reply.outputs[0])[0]) - value, first)

    async def _stream(self, service: Any) -> None:
        length = 30
        while not self._is_over:
            first = self._confirmed
            call = StreamInferRequest(request=infer_request("count", length))
            try:
                replies = [reply async for reply in await service(call) if reply.outputs]
            except Exception as error:  # noqa: BLE001  # whatever it is, the call is lost
                self.wrong.append(f"stream: {error!r}")
                return
            values = [int(as_numpy(reply.outputs[0])[0]) for reply in replies]
            number = values[0] % STEP
            if values != [index * STEP + number for index in range(length)]:
                self.wrong.append(f"stream: {values}")
            self._check("stream", number, first)

    def _check_servers(self) -> None:
        """Check that each call ran once at most, at a server that was in force during the call."""
        calls, CALLS[:] = list(CALLS), []
        for number, value in calls:
            allowed = self._history[self._first[value] :]
            if value in self._ran:
                self.wrong.append(f"call {value} ran twice")
            if number not in allowed:
                self.wrong.append(f"call {value} ran at server {number}, expected {allowed}")
            self._ran.add(value)

    def _check(self, scheme: str, number: int, first: int) -> None:
        """Count a reply of a server that was in force during the call."""
        if number in self._history[first:]:
            self.answered += 1
        else:
            self.wrong.append(f"{scheme}: server {number}, expected {self._history[first:]}")
