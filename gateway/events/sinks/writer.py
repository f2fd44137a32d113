"""EventWriter: makes an event of the bytes of its call, when it is sent."""

from msgspec import Struct

from gateway.concurrency.offload import run_bounded
from gateway.events.definition import SinkDefinition
from gateway.events.messages import call_of
from gateway.events.sinks.form import EventForm
from gateway.events.sinks.queue import QueuedEvent
from gateway.shadow.records.privacy import Hasher


class WrittenEvent(Struct, frozen=True):
    """An event as a sink gets it.

    Attributes:
        attributes: Of CloudEvents, without the prefix of a carrier.
        body: JSON of V2.
    """

    attributes: dict[str, str]
    body: bytes


class EventWriter:
    """Writes the events of one sink. Long work goes to the thread for it.

    Args:
        definition: The sink.
        hasher: Hashes elements.
    """

    def __init__(self, definition: SinkDefinition, hasher: Hasher) -> None:
        self._form = EventForm(definition, hasher)

    async def write(self, event: QueuedEvent) -> WrittenEvent:
        """Return an event."""
        record, note = call_of(event.held.call), event.held.note
        body = await run_bounded(self._form.body, record, note, event.kind)
        return WrittenEvent(self._form.attributes(record, note, event.kind), body)
