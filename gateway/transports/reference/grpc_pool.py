"""Channels to one upstream: how many, how old, and closing them without loss."""

import asyncio
import contextlib
from time import monotonic
from typing import Any

import grpc
from grpc import aio

from gateway.transports.contract import ClientLimits
from gateway.transports.grpc.silence import ACKNOWLEDGED_WITHIN_S, SILENT_S
from gateway.transports.net.tls_files import Authorities, TlsFiles, grpc_channel_credentials
from gateway.transports.reference.grpc_quirks import keep_log_quiet

# What servers allow on one connection (RELIABILITY.md D1); more would wait in the C core unseen.
_STREAMS = 100
_MAX_METADATA = 16 * 1024
_WINDOW_BYTES = 4 * 1024 * 1024
_FIRST_BACKOFF_MS = 100
_MAX_BACKOFF_MS = 1000
_GONE_AFTER_S = SILENT_S + ACKNOWLEDGED_WITHIN_S


class PooledChannel:
    """One connection and its methods.

    Attributes:
        users: Calls on it now.
    """

    def __init__(self, channel: aio.Channel) -> None:
        self.channel = channel
        self.users = 0
        self.born = monotonic()
        self._unanswered_since: float | None = None
        self._unary: dict[str, Any] = {}
        self._stream: dict[str, Any] = {}

    @property
    def is_connected(self) -> bool:
        """The connection works, as far as is known."""
        return self.channel.get_state() is grpc.ChannelConnectivity.READY

    def heard(self) -> None:
        """Note that the server has replied to a call."""
        self._unanswered_since = None

    def used(self) -> None:
        """Note that a call is sent."""
        self.users += 1
        if self._unanswered_since is None:
            self._unanswered_since = monotonic()

    @property
    def unanswered_s(self) -> float:
        """For how many seconds calls have been sent without any reply."""
        return 0.0 if self._unanswered_since is None else monotonic() - self._unanswered_since

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

    def __init__(self, target: str, limits: ClientLimits, tls: TlsFiles | None) -> None:
        self._target = target
        self._limits = limits
        self._tls = tls
        if tls is not None:
            tls.add_user(self)
        self._channels: list[PooledChannel] = []
        self._closing: set[asyncio.Task[None]] = set()

    def acquire(self) -> PooledChannel:
        """Return a channel for one call; `release` returns it."""
        self._retire(monotonic() - self._limits.connection_age_s)
        for channel in self._channels:
            if channel.users < _STREAMS:
                break
        else:
            channel = self._another()
        channel.used()
        return channel

    def release(self, channel: PooledChannel) -> None:
        """End a call's use of *channel*."""
        channel.users -= 1
        if channel.users == 0 and channel not in self._channels:
            self._close(channel)

    def unanswered(self, channel: PooledChannel) -> None:
        """Use *channel* no more if it is silent: a call on it has ended without a reply.

        A PING would tell a lost connection from a slow server, but grpcio has none to send.  So
        this takes as long as the PING of the native implementation and its acknowledgement.
        """
        if channel in self._channels and channel.unanswered_s >= _GONE_AFTER_S:
            self._channels.remove(channel)  # and `release` closes it

    async def close(self) -> None:
        """Close every channel, which breaks off the calls on them."""
        channels, self._channels = self._channels, []
        for channel in channels:
            await channel.channel.close()
        if self._closing:
            await asyncio.wait(self._closing)

    def tls_renewed(self, _authorities: Authorities | None) -> None:
        """Close each channel after its last call."""
        self._retire(monotonic())

    def _retire(self, oldest: float) -> None:
        """Remove channels that were opened before *oldest*."""
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
        if self._tls is None:
            opened = aio.insecure_channel(self._target, options=options)
        else:
            credentials = grpc_channel_credentials(self._tls)
            opened = aio.secure_channel(self._target, credentials, options=options)
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
