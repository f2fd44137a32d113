"""Channels to one upstream: how many, how old, and closing them without loss."""

import asyncio
import contextlib
from time import monotonic
from typing import Any

import grpc
from grpc import aio

from gateway.transports.contract import ClientLimits
from gateway.transports.reference.grpc_quirks import keep_log_quiet

# What servers allow on one connection (RELIABILITY.md D1); more would wait in the C core unseen.
_STREAMS = 100
_MAX_METADATA = 16 * 1024
_WINDOW_BYTES = 4 * 1024 * 1024
_FIRST_BACKOFF_MS = 100
_MAX_BACKOFF_MS = 1000


class PooledChannel:
    """One connection and its methods.

    Attributes:
        users: Calls on it now.
    """

    def __init__(self, channel: aio.Channel) -> None:
        self.channel = channel
        self.users = 0
        self.born = monotonic()
        self._unary: dict[str, Any] = {}
        self._stream: dict[str, Any] = {}

    @property
    def is_connected(self) -> bool:
        """The connection works, as far as is known."""
        return self.channel.get_state() is grpc.ChannelConnectivity.READY

    def unary(self, method: str) -> Any:
        """Return the callable for one response, with raw bytes."""
        found = self._unary.get(method)
        if found is None:
            found = self._unary[method] = self.channel.unary_unary(method)
        return found

    def stream(self, method: str) -> Any:
        """Return the callable for a stream of responses, with raw bytes."""
        found = self._stream.get(method)
        if found is None:
            found = self._stream[method] = self.channel.unary_stream(method)
        return found


class GrpcChannelPool:
    """Gives each call the first channel that can carry it; opens another when all are full.

    A channel older than `connection_age_s` gets no new calls, and is closed after its last one, so
    that a change of address is noticed.
    """

    def __init__(
        self, target: str, limits: ClientLimits, credentials: grpc.ChannelCredentials | None
    ) -> None:
        self._target = target
        self._limits = limits
        self._credentials = credentials
        self._channels: list[PooledChannel] = []
        self._closing: set[asyncio.Task[None]] = set()

    def acquire(self) -> PooledChannel:
        """Return a channel for one call; `release` returns it."""
        self._retire()
        for channel in self._channels:
            if channel.users < _STREAMS:
                break
        else:
            channel = self._another()
        channel.users += 1
        return channel

    def release(self, channel: PooledChannel) -> None:
        """End a call's use of *channel*."""
        channel.users -= 1
        if channel.users == 0 and channel not in self._channels:
            self._close(channel)

    async def close(self) -> None:
        """Close every channel, which breaks off the calls on them."""
        channels, self._channels = self._channels, []
        for channel in channels:
            await channel.channel.close()
        if self._closing:
            await asyncio.wait(self._closing)

    def _retire(self) -> None:
        """Remove channels that are too old."""
        oldest = monotonic() - self._limits.connection_age_s
        if not self._channels or self._channels[0].born >= oldest:  # the first is the oldest
            return
        for channel in [each for each in self._channels if each.born < oldest]:
            self._channels.remove(channel)
            if channel.users == 0:
                self._close(channel)

    def _another(self) -> PooledChannel:
        if len(self._channels) >= self._limits.most_connections:
            return min(self._channels, key=lambda channel: channel.users)
        keep_log_quiet()
        options = _options(self._limits)
        if self._credentials is None:
            opened = aio.insecure_channel(self._target, options=options)
        else:
            opened = aio.secure_channel(self._target, self._credentials, options=options)
        channel = PooledChannel(opened)
        self._channels.append(channel)
        return channel

    def _close(self, channel: PooledChannel) -> None:
        task = asyncio.ensure_future(_closed(channel))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


async def _closed(channel: PooledChannel) -> None:
    with contextlib.suppress(aio.UsageError):  # closed meanwhile
        await channel.channel.close()


def _options(limits: ClientLimits) -> list[tuple[str, Any]]:
    """Return the limits as arguments of the C core.

    There are no keepalive pings: a server with default settings replies to them with GOAWAY.
    """
    return [
        ("grpc.max_receive_message_length", limits.message_bytes),
        # The size of the caller's message was checked when it arrived.
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", _MAX_METADATA),
        ("grpc.absolute_max_metadata_size", _MAX_METADATA),
        # By default the window grows with the estimated bandwidth and latency, up to tens of MiB on
        # a slow host.  A server then runs that far ahead of a client that reads slowly.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", _WINDOW_BYTES),
        # Retries, routes and proxies are the gateway's to decide.
        ("grpc.enable_retries", 0),
        ("grpc.service_config_disable_resolution", 1),
        ("grpc.enable_http_proxy", 0),
        ("grpc.use_local_subchannel_pool", 1),
        # The core's name of the connect timeout.
        ("grpc.min_reconnect_backoff_ms", round(limits.connect_timeout_s * 1000)),
        ("grpc.initial_reconnect_backoff_ms", _FIRST_BACKOFF_MS),
        ("grpc.max_reconnect_backoff_ms", _MAX_BACKOFF_MS),
        ("grpc.dns_min_time_between_resolutions_ms", round(limits.resolve_floor_s * 1000)),
    ]
