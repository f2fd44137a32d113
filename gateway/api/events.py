"""EventSink: receives what happens in the gateway."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct


class Event(Struct, frozen=True):
    """Something that happened.

    Attributes:
        name: Of the event, as in the log.
        time: Seconds since 1970.
        fields: JSON values.
    """

    name: str
    time: float
    fields: Mapping[str, Any]


class EventSink(Protocol):
    """Sends events elsewhere, never on the path of a request."""

    async def send(self, events: Sequence[Event], /) -> None:
        """Send some events, oldest first."""
