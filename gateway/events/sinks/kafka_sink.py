"""KafkaSink: a message for each event, in the binary mode of CloudEvents.

Source: CloudEvents 1.0.2, Kafka protocol binding, 3.2. It needs the extra `kafka`.
"""

import asyncio
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from gateway.config.tls import client_tls
from gateway.events.definition import SinkDefinition
from gateway.events.settings import brokers_and_topic
from gateway.events.sinks.form import CONTENT_TYPE
from gateway.events.sinks.queue import QueuedEvent, SendOutcome
from gateway.events.sinks.writer import EventWriter, WrittenEvent
from gateway.transports.net.tls import client_context


class KafkaSink:
    """A topic of a Kafka cluster.

    Args:
        definition: The sink.
        writer: Writes events.

    Raises:
        ImportError: The extra `kafka` is not installed.
        OSError: A TLS file cannot be read.
        ValueError: A TLS file has invalid content, or the URL is malformed.
    """

    def __init__(self, definition: SinkDefinition, writer: EventWriter) -> None:
        config = definition.config
        self._writer = writer
        self._brokers, self._topic = brokers_and_topic(config.url)
        self._errors = import_module("aiokafka.errors")
        self._options: dict[str, Any] = {
            "bootstrap_servers": self._brokers,
            "acks": "all",
            "request_timeout_ms": round(config.timeout * 1000),
        }
        if config.tls is not None:
            tls = client_context(client_tls(config.tls, definition.directory))
            self._options |= {"security_protocol": "SSL", "ssl_context": tls}
        self._producer: Any = None
        self._starting = asyncio.Lock()

    async def send(self, events: Sequence[QueuedEvent], /) -> Sequence[tuple[SendOutcome, str]]:
        """Send events; both of a call have one key, so they keep their order."""
        try:
            producer = await self._started()
        except (self._errors.KafkaError, OSError) as error:
            reason = f"cannot connect to {','.join(self._brokers)}: {error}"
            return [(SendOutcome.UNREACHABLE, reason)] * len(events)
        written = [await self._writer.write(each) for each in events]
        return await asyncio.gather(*(self._send(producer, each) for each in written))

    async def _started(self) -> Any:
        async with self._starting:
            if self._producer is None:
                producer = import_module("aiokafka").AIOKafkaProducer(**self._options)
                try:
                    await producer.start()
                except BaseException:
                    await producer.stop()
                    raise
                self._producer = producer
            return self._producer

    async def _send(self, producer: Any, event: WrittenEvent) -> tuple[SendOutcome, str]:
        headers = [(f"ce_{name}", value.encode()) for name, value in event.attributes.items()]
        headers.append(("content-type", CONTENT_TYPE.encode()))
        key = event.attributes["id"].encode()
        try:
            await producer.send_and_wait(self._topic, event.body, key=key, headers=headers)
        except self._errors.MessageSizeTooLargeError as error:
            return SendOutcome.REFUSED, str(error)
        except self._errors.KafkaError as error:
            return SendOutcome.FAILED, str(error)
        return SendOutcome.DELIVERED, ""

    async def close(self) -> None:
        """Close the connections; idempotent."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await producer.stop()
