"""ShadowClient: what one serving process sends to the shadow process."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from gateway.config.load import LoadedConfig
from gateway.migration.mirror.capture_tap import CLOSE_S, CaptureTap, Capturing, watch_captures
from gateway.migration.mirror.mirror_tap import MirrorTap, watch_migrations
from gateway.migration.mirror.sampling import MirrorLimits
from gateway.migration.mirror.targets import forwarded_form
from gateway.migration.options import (
    CAPTURE_CHANNEL,
    capture_options,
    captures_of,
)
from gateway.migration.settings import CAPTURE
from gateway.migration.targets import live_migrations
from gateway.telemetry.call_path import CallPath
from gateway.telemetry.metrics import Metrics

_OUTBOX_BYTES: Final = 64 << 20


class ShadowClient:
    """The captures and the mirrors of one serving process.

    Args:
        loaded: The configuration.
        sockets: To the shadow process, by channel.
        metrics: Gets the counts.
        new_path: Makes the record of a call's path.

    Attributes:
        tap: Receives the calls of all frontends; None if nothing is recorded.
        mirrors: The taps of the migrations, by route.
    """

    def __init__(
        self,
        loaded: LoadedConfig,
        sockets: Mapping[str, socket.socket],
        metrics: Metrics,
        new_path: Callable[[], CallPath],
    ) -> None:
        self._captures = {
            channel: Capturing(options, sockets[channel])
            for channel, options in captures_of(loaded).items()
        }
        self.tap: CaptureTap | None = None
        captures = list(self._captures.values())
        if captures:
            self.tap = CaptureTap(captures, new_path)
            watch_captures(metrics, captures)
        migrations = live_migrations(loaded.config)
        limits = MirrorLimits(outbox_bytes=_OUTBOX_BYTES // max(1, len(migrations)))
        taps = [
            MirrorTap(each, sockets[each.name], limits, forwarded_form(each, loaded.config))
            for each in migrations
        ]
        self.mirrors: Mapping[str, MirrorTap] = MappingProxyType(
            {tap.migration.route: tap for tap in taps}
        )
        if taps:
            watch_migrations(metrics, taps)

    def start(self) -> None:
        """Begin to send calls to the shadow process."""
        for capture in self._captures.values():
            capture.start()
        for tap in self.mirrors.values():
            tap.start()

    def change(self, loaded: LoadedConfig) -> None:
        """Follow another configuration with the same channels."""
        capture = CAPTURE.of(loaded.config)
        if capture is not None:
            options = capture_options(capture, loaded.directory)
            self._captures[CAPTURE_CHANNEL].change(options)

    async def close(self) -> None:
        """Wait until all calls are written or compared; idempotent."""
        if self.tap is not None:
            self.tap.send_all()
        closing = [tap.close(CLOSE_S) for tap in self.mirrors.values()]
        closing += [capture.close() for capture in self._captures.values()]
        await asyncio.gather(*closing)
