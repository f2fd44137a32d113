"""ShadowClient: what one serving process sends to the shadow process."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from gateway.app.capture_options import capture_options
from gateway.app.migration.targets import live_migrations
from gateway.app.recording import CLOSE_S, Capturing
from gateway.app.shadow.keeper import CAPTURE, ShadowKeeper
from gateway.app.shadow.mirror_tap import MirrorTap, watch_migrations
from gateway.config.load import LoadedConfig
from gateway.migration.sampling import MirrorLimits
from gateway.telemetry.call_path import CallPath
from gateway.telemetry.metrics import Metrics

_OUTBOX_BYTES: Final = 64 << 20


class ShadowClient:
    """The capture and the mirrors of one serving process.

    Args:
        loaded: The configuration.
        sockets: To the shadow process, by channel.
        keeper: Keeps the shadow process running; None if the supervisor does.
        metrics: Gets the counts.
        new_path: Makes the record of a call's path.

    Attributes:
        capture: None if nothing is recorded.
        mirrors: The taps of the migrations, by route.
        keeper: See above.
    """

    def __init__(
        self,
        loaded: LoadedConfig,
        sockets: Mapping[str, socket.socket],
        keeper: ShadowKeeper | None,
        metrics: Metrics,
        new_path: Callable[[], CallPath],
    ) -> None:
        self.keeper = keeper
        self.capture: Capturing | None = None
        config = loaded.config
        if config.capture is not None:
            options = capture_options(config.capture, loaded.directory)
            self.capture = Capturing(options, sockets[CAPTURE], metrics, new_path)
        migrations = live_migrations(config)
        limits = MirrorLimits(outbox_bytes=_OUTBOX_BYTES // max(1, len(migrations)))
        taps = [MirrorTap(each, sockets[each.name], limits) for each in migrations]
        self.mirrors: Mapping[str, MirrorTap] = MappingProxyType(
            {tap.migration.route: tap for tap in taps}
        )
        if taps:
            watch_migrations(metrics, taps)

    async def start(self) -> None:
        """Start the shadow process, if it is this one's, and send it calls.

        Raises:
            StartError: The shadow process cannot start.
        """
        if self.keeper is not None:
            await self.keeper.start()
        if self.capture is not None:
            self.capture.start()
        for tap in self.mirrors.values():
            tap.start()

    def change(self, loaded: LoadedConfig) -> None:
        """Follow another configuration with the same channels."""
        if self.capture is not None and loaded.config.capture is not None:
            self.capture.change(capture_options(loaded.config.capture, loaded.directory))
        if self.keeper is not None:
            self.keeper.change(loaded)

    async def close(self) -> None:
        """Wait until all calls are written or compared, and end the process; idempotent."""
        closing = [tap.close(CLOSE_S) for tap in self.mirrors.values()]
        if self.capture is not None:
            closing.append(self.capture.close())
        await asyncio.gather(*closing)
        if self.keeper is not None:
            await self.keeper.stop()
