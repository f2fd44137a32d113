"""The migration of `gateway demo --migrate`: two servers, a gateway before them, and its traffic.

The old server has version 1 of the model `digits` and speaks TensorRT v1, the new one has version 2
and speaks Open Inference over gRPC. `cli/migration_demo.py` tells what happens.
"""

import asyncio
import json
import socket
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import quote

from gateway.app import Gateway
from gateway.cli.demo.client import DemoReply, classify_digit, client_routes, opened
from gateway.cli.demo.config import demo_config
from gateway.cli.demo.samples import Scan
from gateway.cli.serving.sidecar import OFF, load_mapping
from gateway.ir.errors import GatewayError
from gateway.service import Service

NAME: Final = "digits"
STEPS: Final = (10, 50, 100)
OLD, NEW = "old/digits:1", "new/digits:2"

_QUIET: Final = {"telemetry": {"log": {"level": "error"}}}
_PATIENCE_S: Final = 120.0
_POLL_S: Final = 0.1
_PAUSE_S: Final = 0.004
_TIMEOUT_S: Final = 10.0
_OK: Final = 200


class DemoFailed(Exception):
    """The demo did not show what it should."""


def free_ports(count: int) -> list[int]:
    """Return ports of 127.0.0.1 that nobody listens on."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def migration_config(old_port: int, new_port: int, folder: Path, admin: str) -> dict[str, Any]:
    """Return the configuration of the gateway, as plain values of its YAML.

    Args:
        old_port: The port of the old server, for HTTP.
        new_port: The port of the new server, for gRPC.
        folder: Of the state and of the recording.
        admin: HOST:PORT of the pages.
    """
    rules = {"label": "exact", "probabilities": {"top_k": 1}}
    guards = {"mismatch": {"below": "10%"}, "errors": {"below": "5%"}}
    return {
        "version": "1",
        "listeners": [{"name": "main", "http": "127.0.0.1:0"}],
        "admin": {"address": admin, "metrics": None},
        "lifecycle": {"pre_stop": "0s", "drain": "2s"},
        "state": {"directory": str(folder / "state")},
        "capture": {"directory": str(folder / "old"), "payload": "full"},
        "upstreams": {
            "old": {"url": f"trtis+http://127.0.0.1:{old_port}"},
            "new": {"url": f"oip+grpc://127.0.0.1:{new_port}"},
        },
        "routes": [
            {
                "name": NAME,
                "match": {"model": NAME},
                "targets": [
                    {"upstream": "old", "model": NAME, "version": "1"},
                    {"upstream": "new", "model": NAME, "version": "2", "weight": 0},
                ],
            }
        ],
        "migrations": {
            NAME: {
                "route": NAME,
                "old": OLD,
                "new": NEW,
                "sample": {"percent": 100, "per_second": 10_000},
                "compare": {"outputs": rules},
                "cutover": {
                    "steps": list(STEPS),
                    "bake": "2s",
                    "min_calls": 20,
                    "sticky": "none",
                    "guards": guards,
                },
            }
        },
        **_QUIET,
    }


class Servers:
    """The old and the new server, in this process; a context manager.

    Attributes:
        old_port: For HTTP.
        new_port: For gRPC.
    """

    def __init__(self) -> None:
        self.old_port, self.new_port = free_ports(2)
        self._running: dict[str, Gateway] = {}

    async def __aenter__(self) -> Self:
        """Start both."""
        await self.start("old", http=f"127.0.0.1:{self.old_port}", grpc=OFF)
        await self.start_new()
        return self

    async def __aexit__(self, *_details: object) -> None:
        """Stop those that run."""
        for name in tuple(self._running):
            await self.stop(name)

    async def start_new(self) -> None:
        """Start the new server."""
        await self.start("new", http=OFF, grpc=f"127.0.0.1:{self.new_port}")

    async def start(self, name: str, *, http: str, grpc: str) -> None:
        """Start one of them."""
        config = {**demo_config(http=http, grpc=grpc, admin=OFF), **_QUIET}
        server = Gateway(load_mapping(config, f"the {name} server"))
        await server.start()
        self._running[name] = server

    async def stop(self, name: str) -> None:
        """Stop one of them; its clients find nobody there."""
        await self._running.pop(name).stop(0.0, 0.0)


@dataclass(slots=True)
class ScanTraffic:
    """A client of TensorRT v1 that sends the held-out scans again and again.

    Attributes:
        calls: Complete calls.
        errors: How many failed, by code.
    """

    service: Service
    scans: Sequence[Scan]
    calls: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    _completed: asyncio.Event = field(default_factory=asyncio.Event)

    async def send_all(self) -> list[DemoReply]:
        """Send each scan once, and return the replies.

        Raises:
            GatewayError: A call failed.
        """
        found = []
        for row, scan in enumerate(self.scans):
            found.append(await classify_digit(self.service, scan, f"scan-{row}"))
            self.calls += 1
        return found

    async def run(self) -> None:
        """Send scans until cancelled; a call that fails is counted."""
        while True:
            for scan in self.scans:
                try:
                    await classify_digit(self.service, scan)
                except GatewayError as error:
                    code = error.code.value
                    self.errors[code] = self.errors.get(code, 0) + 1
                self.calls += 1
                self._completed.set()
                await asyncio.sleep(_PAUSE_S)

    async def wait_for(self, calls: int) -> None:
        """Wait until so many calls are complete, while `run` sends them."""
        while self.calls < calls:
            self._completed.clear()
            await self._completed.wait()


class AdminClient:
    """Reads and commands a migration over the admin port.

    Args:
        address: HOST:PORT.
    """

    def __init__(self, address: str) -> None:
        self._address = address

    async def migration(self) -> dict[str, Any]:
        """Return evidence and cut-over."""
        return await self._request("GET", "")

    async def command(self, command: str) -> None:
        """Run a command of the cut-over."""
        await self._request("POST", f"/{command}")

    async def sample(self, sample: str) -> dict[str, Any]:
        """Return a kept sample."""
        return await self._request("GET", f"/samples/{quote(sample, safe='')}")

    async def wait_until(self, is_reached: Any, what: str) -> dict[str, Any]:
        """Return the migration once a condition holds.

        Raises:
            DemoFailed: It does not hold within two minutes.
        """
        document: dict[str, Any] = {}
        try:
            async with asyncio.timeout(_PATIENCE_S):
                while True:
                    document = await self.migration()
                    if is_reached(document):
                        return document
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            cutover = document.get("cutover") or {}
            raise DemoFailed(
                f"{what} did not happen within {_PATIENCE_S:g} s; the cut-over is "
                f"{cutover.get('state')}: {cutover.get('next')}"
            ) from None

    async def _request(self, method: str, path: str) -> dict[str, Any]:
        return await asyncio.to_thread(self._ask, method, f"/api/v1/migrations/{NAME}{path}")

    def _ask(self, method: str, path: str) -> dict[str, Any]:
        with closing(HTTPConnection(self._address, timeout=_TIMEOUT_S)) as connection:
            connection.request(method, path, headers={"x-gateway-admin": "demo"})
            response = connection.getresponse()
            document: dict[str, Any] = json.loads(response.read())
        if response.status != _OK:
            raise DemoFailed(f"{method} {path}: {document.get('error')}")
        return document


async def different_samples(
    admin: AdminClient, document: Mapping[str, Any]
) -> list[tuple[int, int]]:
    """Return the row of the scan and the label of the new server of each sample that differs."""
    found = set()
    for each in document["evidence"]["samples"]:
        if each["outcome"] == "mismatch":
            sample = await admin.sample(each["id"])
            row = int(sample["request_id"].removeprefix("scan-"))
            labels = [it["values"][0] for it in sample["new"][0] if it["name"] == "label"]
            found.add((row, int(labels[0])))
    return sorted(found)


def old_protocol_client(gateway: Gateway) -> Any:
    """Return a context manager that opens a client of TensorRT v1 over HTTP."""
    route = next(each for each in client_routes(gateway.addresses) if each.codec == "trtis.http")
    return opened(route.url, route.options)
