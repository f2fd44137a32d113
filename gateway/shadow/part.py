"""What an extension has in the shadow process, seen from that process and from its parent."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from prometheus_client.registry import Collector

from gateway.config.load import LoadedConfig
from gateway.processes.worker_process import WorkerProcess

PartSockets = Mapping[str, Mapping[int, socket.socket]]
"""Sockets by channel, and by the number of the serving process."""

SendDocument = Callable[[Mapping[str, Any]], Awaitable[None]]
"""Sends a document to `ShadowUser.receive`; it may have iterators in the place of lists."""


class ShadowPart:
    """An extension's part in the shadow process. A subclass overrides what it needs."""

    @property
    def collectors(self) -> Iterable[Collector]:
        """What has its metrics."""
        return ()

    async def start(self) -> None:
        """Begin to read. Raises what the parent is told: StartError, ConfigError, OSError."""

    def receive(self, _document: Mapping[str, Any], /) -> None:
        """Receive what the parent sends."""

    def exchange(self, _document: Mapping[str, Any], /) -> Mapping[str, Any]:
        """Receive what the parent sends, and return a reply."""
        return {}

    async def close(self) -> None:
        """Read what the sockets hold, and finish all of it."""


class ShadowUser:
    """An extension that needs the shadow process, from its parent's side.

    A subclass overrides what it needs.

    Args:
        name: The name of the extension.
        part: What makes its `ShadowPart`, as "package.module:class"; see `MakePart`.
        channels: Names of sockets that each serving process has to the shadow process.
    """

    def __init__(self, name: str, part: str, channels: Iterable[str]) -> None:
        self.name = name
        self.part = part
        self.channels = tuple(channels)

    def receive(self, _document: Mapping[str, Any], /) -> None:
        """Receive what the part sends."""

    def started(self) -> None:
        """Note that a process has started."""

    def ended(self, _process: WorkerProcess, /, *, is_replaced: bool) -> None:
        """Note that a process has ended; a replaced one begins anew."""


MakePart = Callable[[LoadedConfig, PartSockets, SendDocument], ShadowPart]
"""Makes the part of an extension; it is the class of the part."""
