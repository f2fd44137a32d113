"""A gateway with a cut-over in processes of its own, and the two servers behind it.

The servers run in this process. The old one returns its input, and the new one its input plus 1;
either fails while `FAULTS` has its name.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np

from gateway.app import Gateway
from gateway.backends.python import declares
from gateway.config.load import load_text
from gateway.ir.errors import Unavailable
from gateway.ir.metadata import TensorMetadata
from gateway.ir.tensors.datatypes import Datatype
from tests.integration.http_kit import eventually
from tests.integration.reload_kit import PATIENCE_S, Reloaded, reloadable_beside

_IN = TensorMetadata("IN", Datatype.INT32, (1,))
_OUT = TensorMetadata("OUT", Datatype.INT32, (1,))

FAULTS: set[str] = set()
"""What is wrong: "old" or "new" fails, or "wrong": the new one returns something else."""
CALLS: list[tuple[str, float]] = []
"""Server and time of each call that a model got."""


def _model(name: str, more: int) -> Any:
    @declares(inputs=(_IN,), outputs=(_OUT,))
    async def respond(inputs: dict[str, Any]) -> dict[str, Any]:
        CALLS.append((name, time.monotonic()))
        await asyncio.sleep(0)
        if name in FAULTS:
            raise Unavailable("out of order")
        wrong = 100 if name == "new" and "wrong" in FAULTS else 0
        return {"OUT": inputs["IN"] + np.int32(more + wrong)}

    return respond


old, new = _model("old", 0), _model("new", 1)

_SERVER = """
version: 1
listeners: [{{http: "127.0.0.1:0"}}]
admin: {{address: null, metrics: null}}
lifecycle: {{pre_stop: 0s, drain: 1s}}
models: {{m: {{backend: python, options: {{callable: "tests.integration.migration.cutover_kit:{name}"}}}}}}
"""

CONFIG = """
version: 1
workers: {workers}
listeners: [{{http: "127.0.0.1:0"}}]
admin: {{address: "127.0.0.1:0", metrics: null}}
lifecycle: {{pre_stop: 0s, drain: 5s}}
telemetry: {{log: {{calls_per_second: 0}}}}
state: {{directory: {folder}}}
upstreams: {{old: {{url: "oip+http://{old}"}}, new: {{url: "oip+http://{new}"}}}}
routes: [{{name: r, targets: [{{upstream: old}}, {{upstream: new, weight: 0}}]}}]
migrations:
  m:
    route: r
    old: old
    new: new
    sample: {{percent: 100}}
    mirror: {{timeout: 60s}}  # a busy machine is no fault of the new server
    compare: {{outputs: {{OUT: {{atol: 1}}}}}}
    cutover:
      steps: [50, 100]
      bake: 1s
      min_calls: 1
      sticky: header:x-user
      {options}
"""

UNCOMPARED = "guards: {mismatch: off}"
GUARDED = "guards: {mismatch: off, errors: {below: 1%}}"


@asynccontextmanager
async def two_servers() -> AsyncIterator[dict[str, str]]:
    """Run both servers, and yield their addresses by name."""
    FAULTS.clear()
    CALLS.clear()
    found: dict[str, Gateway] = {}
    try:
        for name in ("old", "new"):
            found[name] = Gateway(load_text(_SERVER.format(name=name)))
            await found[name].start()
        yield {name: server.addresses["main.http"] for name, server in found.items()}
    finally:
        for server in found.values():
            await server.stop()


class MigratingGateway:
    """A gateway in processes of its own.

    Args:
        gateway: Its processes and its admin port.
    """

    def __init__(self, gateway: Reloaded) -> None:
        self.gateway = gateway

    async def do(self, verb: str, **body: Any) -> dict[str, Any]:
        """Send a command, and return the document of the cut-over."""
        status, document = await asyncio.to_thread(
            self.gateway.admin,
            "POST",
            f"/api/v1/migrations/m/{verb}",
            {"x-gateway-admin": "1"},
            json.dumps(body),
        )
        assert status == 200, document
        found: dict[str, Any] = document["cutover"]
        return found

    async def get(self, path: str = "") -> tuple[int, Any]:
        """Return status and document of a page of the migration."""
        return await asyncio.to_thread(self.gateway.admin, "GET", f"/api/v1/migrations/m{path}")

    async def cutover(self) -> dict[str, Any]:
        """Return the document of the cut-over."""
        found: dict[str, Any] = (await self.get())[1]["cutover"]
        return found

    async def reaches(self, state: str) -> dict[str, Any]:
        """Wait until the cut-over is in a state."""

        async def so_far() -> dict[str, Any]:
            document = await self.cutover()
            return document if document["state"] == state else {}

        return await eventually(so_far, PATIENCE_S)

    async def at_step(self, step: int) -> None:
        """Start at a step, without waiting for those before it."""
        await self.do("start")
        await self.do("pause")
        await self.do("resume", at_step=step)

    async def ask(self, count: int, users: int = 20) -> list[str]:
        """Make calls on new connections, and return the server of each, or the status."""
        return await asyncio.to_thread(self._ask, count, users)

    def _ask(self, count: int, users: int) -> list[str]:
        found = []
        for number in range(count):
            address = self.gateway.running.addresses["main.http"]
            tensor = {"name": "IN", "shape": [1], "datatype": "INT32", "data": [10]}
            with closing(HTTPConnection(address, timeout=PATIENCE_S)) as connection:
                connection.request(
                    "POST",
                    "/v2/models/m/infer",
                    json.dumps({"inputs": [tensor]}),
                    {"x-user": f"u{number % users}"},
                )
                response = connection.getresponse()
                document = json.loads(response.read())
            if response.status == 200:
                value = document["outputs"][0]["data"][0]
                found.append({10: "old", 11: "new"}.get(value, "wrong"))
            else:
                found.append(str(response.status))
        return found


def state_on_disk(folder: Path) -> dict[str, Any]:
    """Return the state that a restart continues with."""
    found: dict[str, Any] = json.loads((folder / "cutover" / "m.json").read_text())["state"]
    return found


@asynccontextmanager
async def migrating(
    folder: Path, addresses: dict[str, str], workers: int = 1, options: str = GUARDED
) -> AsyncIterator[MigratingGateway]:
    """Run a gateway whose state is in *folder*."""
    text = CONFIG.format(folder=folder, workers=workers, options=options, **addresses)
    async with reloadable_beside(folder / f"{os.getpid()}.yaml", text) as gateway:
        yield MigratingGateway(gateway)
