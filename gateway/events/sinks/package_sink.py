"""PackageSink: a sink of an installed package, found by the scheme of its URL."""

import inspect
from collections.abc import Sequence
from datetime import datetime

import orjson

from gateway import registry
from gateway.api.events import Event
from gateway.events.definition import SinkDefinition
from gateway.events.sinks.queue import QueuedEvent, SendOutcome
from gateway.events.sinks.writer import EventWriter
from gateway.telemetry.faults import FAULTS


class PackageSink:
    """An `EventSink` of a package. What it raises counts as a failed attempt.

    Args:
        definition: The sink.
        writer: Writes events.

    Raises:
        LookupError: There is no such sink, or it cannot be imported.
    """

    def __init__(self, definition: SinkDefinition, writer: EventWriter) -> None:
        config = definition.config
        self._writer = writer
        self._sink = registry.event_sink(config.scheme)(config.url)

    async def send(self, events: Sequence[QueuedEvent], /) -> Sequence[tuple[SendOutcome, str]]:
        """Send events."""
        found = []
        for each in events:
            written = await self._writer.write(each)
            attributes = written.attributes
            at = datetime.fromisoformat(attributes["time"])
            fields = {**attributes, "data": orjson.loads(written.body)}
            found.append(Event(attributes["type"], at.timestamp(), fields))
        try:
            await self._sink.send(found)
        except FAULTS as error:  # each package has its own; it is logged
            reason = f"{type(error).__name__}: {error}"
            return [(SendOutcome.FAILED, reason)] * len(events)
        return [(SendOutcome.DELIVERED, "")] * len(events)

    async def close(self) -> None:
        """Close the sink, if it can be closed."""
        close = getattr(self._sink, "close", None)
        if close is not None:
            closed = close()
            if inspect.isawaitable(closed):
                await closed
