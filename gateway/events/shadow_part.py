"""EventSinks: the sinks of events in the shadow process, with the sockets to serving processes."""

from __future__ import annotations

from gateway.config.load import LoadedConfig
from gateway.events.definition import event_sinks
from gateway.events.hub import SinkHub
from gateway.events.leading import CHANNEL
from gateway.events.messages import EventMessage, EventResults, decode_event_message
from gateway.events.sinks.opening import open_queue
from gateway.shadow.inbox import Inbox
from gateway.shadow.part import PartSockets, SendDocument, ShadowPart


class EventSinks(ShadowPart):
    """All sinks of a configuration, and of those that replace it.

    Args:
        loaded: The configuration.
        sockets: To the serving processes.
        _send: Sends a document to the parent, which needs none.
    """

    def __init__(self, loaded: LoadedConfig, sockets: PartSockets, _send: SendDocument, /) -> None:
        self._inbox: Inbox[EventMessage] = Inbox(
            sockets[CHANNEL], decode_event_message, EventResults()
        )
        self._hub = SinkHub(event_sinks(loaded), self._inbox.confirm, open_queue)

    async def start(self) -> None:
        """Announce this process, and begin to read."""
        self._inbox.start(self._hub)

    async def close(self) -> None:
        """Read what the sockets hold, drop what is not sent, and tell the serving processes."""
        self._inbox.stop()
        await self._hub.close()
