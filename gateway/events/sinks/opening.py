"""Opens the sinks of events by the schemes of their URLs."""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Final

import structlog

from gateway.events.definition import SinkDefinition
from gateway.events.sinks.queue import (
    OnDone,
    QueuedEvent,
    QueueOptions,
    SendOutcome,
    Sink,
    SinkQueue,
)
from gateway.events.sinks.writer import EventWriter
from gateway.shadow.objects import SCHEMES, ObjectStoreError
from gateway.shadow.records.privacy import Hasher

log = structlog.get_logger(__name__)

_FOLDER: Final = "gateway.events.sinks"
_REASONS: Final = (ImportError, LookupError, ObjectStoreError, OSError, ValueError)
"""What opening a sink raises."""
_BATCHES: Final = 16
"""A batch begins when it has this part of `outbox_bytes`, so that calls still come meanwhile."""
_LINGERS_S: Final = {"kafka": 0.1, **dict.fromkeys(SCHEMES, 60.0)}
"""Time that an event waits for others; sinks of packages get what there is."""


def open_queue(definition: SinkDefinition, hasher: Hasher, on_done: OnDone, /) -> SinkQueue:
    """Return the queue of a sink, which is opened with the first event."""
    sink = LateSink(definition, EventWriter(definition, hasher))
    return SinkQueue(definition.name, sink, _options(definition), on_done)


def _options(definition: SinkDefinition) -> QueueOptions:
    config = definition.config
    batch, linger_s = 1, 0.0
    if not config.is_http:
        batch = config.batch.events
        linger_s = _LINGERS_S.get(config.scheme, 0.0)
        if config.batch.time is not None:
            linger_s = config.batch.time
    return QueueOptions(
        attempts=config.attempts,
        concurrency=config.concurrency,
        timeout_s=config.timeout,
        batch=batch,
        batch_bytes=max(1, config.outbox_bytes // _BATCHES),
        linger_s=linger_s,
    )


def open_sink(definition: SinkDefinition, writer: EventWriter) -> Sink:
    """Return a sink.

    Raises:
        ImportError, LookupError, ObjectStoreError, OSError, ValueError: It cannot be opened.
    """
    config = definition.config
    if config.is_http:
        module, name = "post_sink", "PostSink"
    elif config.is_kafka:
        module, name = "kafka_sink", "KafkaSink"
    elif config.is_objects:
        module, name = "object_sink", "ObjectSink"
    else:
        module, name = "package_sink", "PackageSink"
    make: Callable[[SinkDefinition, EventWriter], Any] = getattr(
        import_module(f"{_FOLDER}.{module}"), name
    )
    sink: Sink = make(definition, writer)
    return sink


class LateSink:
    """A sink that is opened with the first event, and again while it cannot be.

    Args:
        definition: The sink.
        writer: Writes its events.
    """

    def __init__(self, definition: SinkDefinition, writer: EventWriter) -> None:
        self._definition = definition
        self._writer = writer
        self._sink: Sink | None = None

    async def send(self, events: Sequence[QueuedEvent], /) -> Sequence[tuple[SendOutcome, str]]:
        """Send events; the sink counts as not reached while it cannot be opened."""
        if self._sink is None:
            try:
                self._sink = open_sink(self._definition, self._writer)
            except _REASONS as error:
                return [(SendOutcome.UNREACHABLE, str(error))] * len(events)
        return await self._sink.send(events)

    async def close(self) -> None:
        """Close connections; idempotent."""
        sink, self._sink = self._sink, None
        if sink is not None:
            await sink.close()
