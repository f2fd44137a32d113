"""EventSinks: the sinks of events in the shadow process, with the sockets to serving processes."""

import socket
from collections.abc import Mapping

from gateway.config.load import LoadedConfig
from gateway.migration.events.hub import SinkHub
from gateway.migration.events.messages import EventMessage, EventResults, decode_event_message
from gateway.migration.events.sinks import open_queue
from gateway.migration.options import event_sinks
from gateway.shadow.inbox import Inbox


class EventSinks:
    """All sinks of a configuration, and of those that replace it.

    Args:
        loaded: The configuration.
        sockets: By the number of the serving process.
    """

    def __init__(self, loaded: LoadedConfig, sockets: Mapping[int, socket.socket]) -> None:
        self._inbox: Inbox[EventMessage] = Inbox(sockets, decode_event_message, EventResults())
        self._hub = SinkHub(event_sinks(loaded), self._inbox.confirm, open_queue)

    def start(self) -> None:
        """Announce this process, and begin to read."""
        self._inbox.start(self._hub)

    async def close(self) -> None:
        """Read what the sockets hold, drop what is not sent, and tell the serving processes."""
        self._inbox.stop()
        await self._hub.close()
