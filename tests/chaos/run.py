"""One run of chaos: a gateway of two workers, three faulty servers, and clients that check.

Each client compares each reply with its call. Errors are allowed, because servers fail and
workers are killed. Wrong replies, malformed replies and calls that end later than their deadline
are not. When everything is well again, no call may fail.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from gateway.app import connect
from gateway.ir.calls import InferRequest
from gateway.ir.context import Context, ModelRef, Need
from gateway.ir.errors import DeadlineExceeded, GatewayError, Overloaded, Unavailable
from gateway.ir.tensors.tensor import array_tensor, as_numpy
from gateway.policies.complete.policy import Complete
from gateway.settings.units import parse_url
from tests.chaos.faulty_server import FAULTS, FaultyServer
from tests.integration.reload_kit import Reloaded, reloadable_beside
from tests.integration.workers_kit import in_flight, is_alive, pids

SCHEMES: Final = ("oip+http", "oip+grpc", "grps+brpc")
TIMEOUT_S: Final = 3.0
# A call may end so much later than its deadline: the machine runs other programs, too.
SLACK_S: Final = 3.0
RECOVERY_S: Final = 30.0
_WHOLE = frozenset({Need.NAMES, Need.DATATYPES, Need.SHAPES})

CONFIG = """
version: 1
workers: 2
listeners:
  - http: "127.0.0.1:0"
    grpc: "127.0.0.1:0"
    default_model: add
    streams: [{{protocol: grps, address: "127.0.0.1:0"}}]
admin: {{address: "127.0.0.1:0", metrics: null}}
lifecycle: {{pre_stop: 0s, drain: 5s}}
telemetry: {{log: {{calls_per_second: 0}}}}
upstreams:
  servers: {{urls: [{urls}], options: {{dialect: mlserver}}, probe: {{interval: 500ms, timeout: 500ms}}}}
routes:
  - name: all
    timeout: {timeout}ms
    targets: [{{upstream: servers}}]
    retry: {{on: [unsent, unavailable], attempts: 3, idempotent: true}}
"""


@dataclass
class Summary:
    """What happened.

    Attributes:
        seed: Of all decisions.
        outcomes: Calls by scheme and outcome.
        events: Faults, kills, reloads.
        wrong: What may never happen, as texts.
    """

    seed: int
    outcomes: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        rows = [f"seed {self.seed}: {len(self.wrong)} wrong"]
        for title, counts in (("calls", self.outcomes), ("events", self.events)):
            rows += [f"  {title}: {name}: {count}" for name, count in sorted(counts.items())]
        return "\n".join(rows + [f"  WRONG: {each}" for each in self.wrong[:20]])


class Client:
    """Makes one call after another over one protocol, and cancels some of them."""

    def __init__(self, scheme: str, url: str, draw: random.Random, summary: Summary) -> None:
        self._scheme = scheme
        self._draw = draw
        self._summary = summary
        self._connected = connect(parse_url(url))
        self._service = Complete(self._connected.service, self._connected.needs)
        self.must_succeed = False

    async def run(self, is_over: asyncio.Event) -> None:
        try:
            while not is_over.is_set():
                await self.call_model()
        finally:
            await self._connected.close()

    async def call_model(self) -> bool:
        """Make one call; return whether it had a reply."""
        values = np.array(
            [self._draw.randrange(1 << 20) for _ in range(self._draw.randint(1, 40))], np.int32
        )
        began = time.monotonic()
        call = InferRequest(
            model=ModelRef("add"),
            inputs=(array_tensor("IN", values),),
            id=str(self._draw.randrange(1 << 30)),
            context=Context(needs=_WHOLE, deadline=began + TIMEOUT_S),
        )
        task = asyncio.ensure_future(self._service(call))
        if not self.must_succeed and self._draw.random() < 0.05:
            asyncio.get_running_loop().call_later(self._draw.uniform(0, 0.02), task.cancel)
        outcome, has_reply = "answered", False
        try:
            async with asyncio.timeout(TIMEOUT_S + SLACK_S):
                reply = await task
        except asyncio.CancelledError:
            outcome = "left"
        except TimeoutError:
            outcome = "late"
            self._summary.wrong.append(f"{self._scheme}: no end {SLACK_S} s after the deadline")
        except GatewayError as error:
            outcome = error.code.value
            self._judge(error)
            await asyncio.sleep(0.005)
        else:
            has_reply = True
            self._compare(values, [as_numpy(each) for each in reply.outputs])
        self._summary.outcomes[f"{self._scheme} {outcome}"] += 1
        return has_reply

    def _judge(self, error: GatewayError) -> None:
        expected = isinstance(error, Unavailable | Overloaded | DeadlineExceeded)
        # An upstream that lies is the gateway's to report; its words are those of `Upstream`.
        if not expected and error.origin is None:
            self._summary.wrong.append(f"{self._scheme}: {error!r}")
        if self.must_succeed:
            self._summary.outcomes[f"{self._scheme} failed although all is well"] += 1

    def _compare(self, inputs: Any, found: Any) -> None:
        if len(found) != 1 or not np.array_equal(inputs + 1, found[0]):
            self._summary.wrong.append(f"{self._scheme}: {inputs + 1} expected, found {found}")


class Chaos:
    """One run.

    Args:
        seed: Of all decisions.
        seconds: How long faults go on.
        folder: For the configuration file.
    """

    def __init__(self, seed: int, seconds: float, folder: Path) -> None:
        self._seconds = seconds
        self._path = folder / "gateway.yaml"
        self._draw = random.Random(seed)  # noqa: S311  # repeatable, not secret
        self._servers = [FaultyServer(self._draw) for _ in range(3)]
        self.summary = Summary(seed)

    async def run(self) -> Summary:
        """Run it, and return what happened."""
        async with self._gateway() as gateway:
            over = asyncio.Event()
            clients = [
                Client(scheme, gateway.url(scheme), self._draw, self.summary)
                for scheme in SCHEMES
                for _ in range(4)
            ]
            tasks = [asyncio.create_task(client.run(over)) for client in clients]
            await self._disturb(gateway)
            await self._heal(clients)
            over.set()
            await asyncio.gather(*tasks)
            await self._check_rest(gateway)
        return self.summary

    @contextlib.asynccontextmanager
    async def _gateway(self) -> AsyncIterator[Reloaded]:
        for server in self._servers:
            await server.start()
        try:
            async with reloadable_beside(self._path, self._config()) as gateway:
                yield gateway
        finally:
            for server in self._servers:
                await server.stop()

    def _config(self, servers: list[FaultyServer] | None = None) -> str:
        urls = ", ".join(
            f'"oip+http://127.0.0.1:{server.port}"' for server in servers or self._servers
        )
        return CONFIG.format(urls=urls, timeout=self._draw.randint(1500, 2500))

    async def _disturb(self, gateway: Reloaded) -> None:
        """Do something harmful every few hundred milliseconds."""
        end = time.monotonic() + self._seconds
        while time.monotonic() < end:
            await asyncio.sleep(self._draw.uniform(0.05, 0.6))
            action = self._draw.choices(
                [self._change_server, self._kill_worker, self._reload, self._hang_up],
                [10, 1, 2, 1],
            )[0]
            await action(gateway)

    async def _change_server(self, _gateway: Reloaded) -> None:
        server = self._draw.choice(self._servers)
        fault = self._draw.choice((None, None, *FAULTS))
        await server.set(fault)
        self.summary.events[f"server {fault or 'well'}"] += 1

    async def _kill_worker(self, gateway: Reloaded) -> None:
        alive = [pid for pid in pids(gateway.running).values() if is_alive(pid)]
        if len(alive) == 2:  # a gateway without any worker serves no call
            os.kill(self._draw.choice(alive), signal.SIGKILL)
            self.summary.events["worker killed"] += 1

    async def _reload(self, gateway: Reloaded) -> None:
        servers = self._draw.sample(self._servers, self._draw.randint(2, 3))
        if self._draw.random() < 0.2:
            self._path.write_text("version: 9")
            status, _ = await asyncio.to_thread(gateway.admin, "POST", "/reload")
            self._expect("bad configuration", status, {422})
        else:
            status, _ = await gateway.reload(self._config(servers))
            self._expect("reload", status, {200, 422})

    async def _hang_up(self, gateway: Reloaded) -> None:
        gateway.running.process.send_signal(signal.SIGHUP)
        self.summary.events["SIGHUP"] += 1

    def _expect(self, what: str, status: int, allowed: set[int]) -> None:
        self.summary.events[f"{what}: {status}"] += 1
        if status not in allowed:
            self.summary.wrong.append(f"{what}: status {status}")

    async def _heal(self, clients: list[Client]) -> None:
        """Let everything be well; soon every call must succeed."""
        for server in self._servers:
            await server.set(None)
        for client in clients:
            client.must_succeed = True
        began = time.monotonic()
        failed = self._failures()
        calm_since = began
        while time.monotonic() - calm_since < 3.0:
            await asyncio.sleep(0.1)
            if self._failures() > failed:
                failed, calm_since = self._failures(), time.monotonic()
            if time.monotonic() - began > RECOVERY_S:
                self.summary.wrong.append(f"calls still fail {RECOVERY_S} s after all is well")
                return
        self.summary.events[f"seconds to recover: {calm_since - began:.0f}"] += 1

    def _failures(self) -> int:
        counts = self.summary.outcomes.items()
        return sum(count for name, count in counts if name.endswith("all is well"))

    async def _check_rest(self, gateway: Reloaded) -> None:
        """Nothing is left behind: no memory, no internal error, and the process ends well."""
        deadline = time.monotonic() + 10.0
        while await asyncio.to_thread(in_flight, gateway.running):
            if time.monotonic() > deadline:
                self.summary.wrong.append("requests hold memory although nobody asks")
                break
            await asyncio.sleep(0.1)
        status = await asyncio.to_thread(gateway.running.stop)
        if status != 0:
            self.summary.wrong.append(f"exit status {status}")
        bad = [line for line in gateway.running.log if "Traceback" in line or "internal" in line]
        self.summary.wrong += [f"log: {line[:300]}" for line in bad[:5]]
