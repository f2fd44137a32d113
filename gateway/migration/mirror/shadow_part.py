"""MigrationShadow: captures and migrations in the shadow process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client.registry import Collector

from gateway.config.load import LoadedConfig
from gateway.migration.captures.recorder import CaptureRecorder
from gateway.migration.captures.sampling import CaptureOptions
from gateway.migration.captures.uploader import UploadMetrics
from gateway.migration.mirror.mirroring import Mirroring
from gateway.migration.options import captures_of
from gateway.shadow.inbox import Inbox, sample_inbox
from gateway.shadow.part import PartSockets, SendDocument, ShadowPart
from gateway.shadow.records.transfer import SampleMessage


class MigrationShadow(ShadowPart):
    """Writes captures, and asks the targets of migrations.

    It has a channel for each capture, and one for each migration.

    Args:
        loaded: The configuration.
        sockets: To the serving processes.
        send: Sends evidence to the parent.
    """

    def __init__(self, loaded: LoadedConfig, sockets: PartSockets, send: SendDocument, /) -> None:
        self._loaded = loaded
        self._send = send
        self._inboxes = {channel: sample_inbox(ends) for channel, ends in sockets.items()}
        self._mirroring: Mirroring | None = None
        self._recorders: list[CaptureRecorder] = []

    @property
    def collectors(self) -> Iterable[Collector]:
        """What has the metrics of uploads."""
        return (UploadMetrics([each.uploader for each in self._recorders]),)

    async def start(self) -> None:
        """Begin to read.

        Raises:
            ConfigError, StartError, LookupError, OSError, ValueError: A directory cannot be
                written, or a target cannot be built.
        """
        captures = captures_of(self._loaded)
        for name, options in captures.items():
            self._recorders.append(await _start_recorder(options, self._inboxes[name]))
        if self._inboxes.keys() - captures.keys():
            self._mirroring = Mirroring(self._loaded, self._inboxes, self._send)
            await self._mirroring.start()

    def receive(self, document: Mapping[str, Any], /) -> None:
        """Begin the evidence of a migration anew, or continue with earlier evidence."""
        if self._mirroring is None:
            return
        if "reset" in document:
            self._mirroring.reset(document["reset"])
        else:
            self._mirroring.resume(document["resume"])

    def exchange(self, document: Mapping[str, Any], /) -> Mapping[str, Any]:
        """Return a kept call of a migration."""
        found = None
        if self._mirroring is not None:
            found = self._mirroring.sample(document["migration"], document["id"])
        return {"sample": found}

    async def close(self) -> None:
        """Write what there is, and confirm it."""
        for inbox in self._inboxes.values():
            inbox.stop()
        if self._mirroring is not None:
            await self._mirroring.close()
        for recorder in self._recorders:
            await asyncio.to_thread(recorder.close)


async def _start_recorder(options: CaptureOptions, inbox: Inbox[SampleMessage]) -> CaptureRecorder:
    """Return a recorder that reads from *inbox*.

    Raises:
        OSError: The directory cannot be written.
    """
    recorder = CaptureRecorder(options, inbox.confirm_soon)
    await asyncio.to_thread(recorder.start)
    inbox.start(recorder)
    return recorder
