"""The routes of an admin port without a socket, and doubles of what migrations show."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client.core import Metric

from gateway.app.admin.router import AdminRouter
from gateway.app.admin.running import RunningGateway
from gateway.app.admin.server import admin_routers
from gateway.app.parts import LeadingParts
from gateway.app.reload import Reloader
from gateway.config.admin import AdminConfig
from gateway.config.load import LoadedConfig, load_text
from gateway.config.models import Config
from gateway.ir.context import Client
from gateway.migration.admin import MigrationPages
from gateway.migration.admin.migrations.documents import CutoverSource, EvidenceSource
from gateway.wire.http import Headers, HttpRequest


class Process:
    """A process without traffic."""

    async def status(self) -> dict[str, Any]:
        """Return a status without routes."""
        return {"routes": []}

    async def ready(self) -> bool:
        """Return that it is ready."""
        return True

    async def page(self, _accept: str, /) -> tuple[bytes, str]:
        """Return no metrics."""
        return b"", "text/plain"

    async def families(self) -> Iterable[Metric]:
        """Return no metrics."""
        return ()


class Evidence:
    """The evidence of one migration, whose kept sample is `s`."""

    def __init__(self, *verdicts: str) -> None:
        guards = [{"guard": name, "verdict": name, "evidence": ""} for name in verdicts]
        self.evidence: Mapping[str, dict[str, Any]] = {
            "fraud": {
                "guards": guards,
                "sampled": 16,
                "compared": 15,
                "replies_compared": 10,
                "failed": 5,
                "reasons": [
                    {
                        "outcome": "new_error",
                        "code": "internal",
                        "count": 5,
                        "example": "no GPU",
                        "call": "a1b2-3",
                    }
                ],
                "outcomes": {"match": 9, "mismatch": 1, "new_error": 5},
            }
        }

    async def sample(self, migration: str, sample: str) -> dict[str, Any] | None:
        """Return the sample `s`."""
        return {"id": sample} if (migration, sample) == ("fraud", "s") else None


class Cutover:
    """Accepts `pause` alone, and remembers it."""

    def __init__(self) -> None:
        self.commands: list[tuple[str, str, int | None]] = []

    def document(self, _migration: str) -> dict[str, Any] | None:
        """Return where it stands."""
        return {"state": "baking", "weight": 5}

    def moved(self, _config: Config) -> dict[str, tuple[str, float]]:
        """Return that no call moves."""
        return {}

    def verdict(self, _migration: str) -> None:
        """Return none."""
        return

    async def command(
        self, migration: str, command: str, at_step: int | None = None
    ) -> dict[str, Any] | None:
        """Remember a command."""
        if command != "pause":
            raise ValueError(f"{command} is not possible: the cut-over is baking; expected pause")
        self.commands.append((migration, command, at_step))
        return self.document(migration)


def pages(
    evidence: EvidenceSource | None = None, cutover: CutoverSource | None = None
) -> LeadingParts:
    """Return the leading parts of a gateway with these migrations."""
    return LeadingParts({"migration": MigrationPages(evidence, cutover)})


def router_of(
    loaded: LoadedConfig | str,
    leading: LeadingParts | None = None,
    reloader: Reloader | None = None,
) -> AdminRouter:
    """Return what serves the admin port of a configuration."""
    found = load_text(loaded) if isinstance(loaded, str) else loaded

    async def apply(_loaded: LoadedConfig, _drained: object) -> dict[str, list[str]]:
        return {}

    known = reloader or Reloader(lambda: found, found, apply, clock=lambda: 5.0)
    gateway = RunningGateway(Process(), known, pages() if leading is None else leading)
    return admin_routers(found.config.admin or AdminConfig(), gateway)["admin"]


@dataclass
class Reply:
    """A response."""

    status: int
    headers: Headers
    body: bytes

    @property
    def document(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


async def ask(
    served: AdminRouter,
    path: str,
    method: str = "GET",
    body: bytes = b"",
    query: str = "",
    *,
    address: str = "127.0.0.1",
    headers: Mapping[str, str] | None = None,
) -> Reply:
    """Return the response to a request, by default of a command on this machine."""
    fields = {"Host": "localhost", "x-gateway-admin": "1"} if headers is None else headers
    wire = HttpRequest(
        method, path, query, Headers(list(fields.items())), (body,), client=Client(address)
    )
    parts = [each async for each in served(wire)]
    whole = b"".join(bytes(each.view) for each in parts)
    return Reply(parts[0].status, parts[0].headers, whole)
