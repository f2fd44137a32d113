"""ShadowClient: what one serving process sends to the shadow process."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from gateway.config.load import LoadedConfig
from gateway.migration.mirror.capture_tap import CLOSE_S, CaptureTap, Capturing, watch_captures
from gateway.migration.mirror.keeper import ShadowKeeper
from gateway.migration.mirror.mirror_tap import MirrorTap, watch_migrations
from gateway.migration.mirror.sampling import MirrorLimits
from gateway.migration.mirror.targets import forwarded_form
from gateway.migration.options import (
    CAPTURE_CHANNEL,
    EVENT_CHANNEL,
    capture_options,
    captures_of,
    event_sinks,
)
from gateway.migration.settings import CAPTURE
from gateway.migration.targets import live_migrations
from gateway.telemetry.call_path import CallPath
from gateway.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from gateway.migration.mirror.event_tap import EventTap

_OUTBOX_BYTES: Final = 64 << 20


class ShadowClient:
    """The captures and the mirrors of one serving process.

    Args:
        loaded: The configuration.
        sockets: To the shadow process, by channel.
        keeper: Keeps the shadow process running; None if the supervisor does.
        metrics: Gets the counts.
        new_path: Makes the record of a call's path.
        count: Number of serving processes.

    Attributes:
        tap: Receives the calls of all frontends; None if nothing is recorded.
        mirrors: The taps of the migrations, by route.
        keeper: Keeps the shadow process running; None if the supervisor does.
    """

    def __init__(
        self,
        loaded: LoadedConfig,
        sockets: Mapping[str, socket.socket],
        keeper: ShadowKeeper | None,
        metrics: Metrics,
        new_path: Callable[[], CallPath],
        count: int = 1,
    ) -> None:
        self.keeper = keeper
        self._captures = {
            channel: Capturing(options, sockets[channel])
            for channel, options in captures_of(loaded).items()
        }
        self.tap: CaptureTap | None = None
        captures = list(self._captures.values())
        self._events: EventTap | None = None
        if EVENT_CHANNEL in sockets:
            from gateway.migration.mirror.event_tap import (  # noqa: PLC0415  # if it is used
                EventTap,
            )

            self._events = EventTap(event_sinks(loaded), sockets[EVENT_CHANNEL], count)
            metrics.registry.register(self._events.metrics)
        if captures or self._events is not None:
            self.tap = CaptureTap(captures, new_path, self._events)
        if captures:
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

    async def start(self) -> None:
        """Start the shadow process, if it is this one's, and send it calls.

        Raises:
            StartError: The shadow process cannot start.
        """
        if self.keeper is not None:
            await self.keeper.start()
        for capture in self._captures.values():
            capture.start()
        for tap in self.mirrors.values():
            tap.start()
        if self._events is not None:
            self._events.start()

    def change(self, loaded: LoadedConfig) -> None:
        """Follow another configuration with the same channels."""
        capture = CAPTURE.of(loaded.config)
        if capture is not None:
            options = capture_options(capture, loaded.directory)
            self._captures[CAPTURE_CHANNEL].change(options)
        if self._events is not None:
            self._events.change(event_sinks(loaded))
        if self.keeper is not None:
            self.keeper.change(loaded)

    async def close(self) -> None:
        """Wait until all calls are written or compared, and end the process; idempotent."""
        if self.tap is not None:
            self.tap.send_all()
        closing = [tap.close(CLOSE_S) for tap in self.mirrors.values()]
        closing += [capture.close() for capture in self._captures.values()]
        if self._events is not None:
            closing.append(self._events.close(CLOSE_S))
        await asyncio.gather(*closing)
        if self.keeper is not None:
            await self.keeper.stop()
