"""ObjectSink: objects with many events, in the columns of KServe's logger.

Source: KServe, pkg/logger/marshaller_record.go.
"""

import asyncio
import io
import time
from base64 import b64encode
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final
from uuid import uuid4

import orjson

from gateway.events.definition import SinkDefinition
from gateway.events.sinks.form import CONTENT_TYPE
from gateway.events.sinks.queue import QueuedEvent, SendOutcome
from gateway.events.sinks.writer import EventWriter, WrittenEvent
from gateway.shadow.objects import ObjectStoreError, object_store

COLUMNS: Final[tuple[str, ...]] = (
    "url",
    "bytes",
    "contentType",
    "reqType",
    "id",
    "sourceUri",
    "inferenceService",
    "namespace",
    "component",
    "endpoint",
    "metadata",
    "annotations",
    "certName",
    "tlsSkipVerify",
)
"""Of an object; all but the last one are texts."""

_OWN: Final = frozenset(
    {
        "specversion",
        "type",
        "id",
        "source",
        "inferenceservicename",
        "namespace",
        "component",
        "endpoint",
        "metadata",
    }
)
"""Attributes that have a column; the others are annotations."""


class ObjectSink:
    """A prefix of an object store.

    Args:
        definition: The sink.
        writer: Writes events.

    Raises:
        ImportError: pyarrow is not installed, and the format is `parquet`.
        ObjectStoreError: A package is missing, or the store refuses.
        ValueError: The URL is malformed.
    """

    def __init__(self, definition: SinkDefinition, writer: EventWriter) -> None:
        config = definition.config
        self._writer = writer
        self._url = config.url
        self._verifies = config.tls is None or config.tls.verify
        self._format = config.format
        if config.format == "parquet":
            import pyarrow.parquet  # noqa: F401, PLC0415  # an extra, which is missed at once
        self._store = object_store(config.url)

    async def send(self, events: Sequence[QueuedEvent], /) -> Sequence[tuple[SendOutcome, str]]:
        """Write one object with all events."""
        rows = [self._row(await self._writer.write(each)) for each in events]
        try:
            await asyncio.to_thread(self._write, rows)
        except ObjectStoreError as error:
            return [(SendOutcome.FAILED, str(error))] * len(events)
        return [(SendOutcome.DELIVERED, "")] * len(events)

    def _row(self, event: WrittenEvent) -> dict[str, Any]:
        found = event.attributes
        annotations = {name: value for name, value in found.items() if name not in _OWN}
        return {
            "url": self._url,
            "bytes": b64encode(event.body).decode(),
            "contentType": CONTENT_TYPE,
            "reqType": found["type"],
            "id": found["id"],
            "sourceUri": found["source"],
            "inferenceService": found["inferenceservicename"],
            "namespace": found["namespace"],
            "component": found["component"],
            "endpoint": found["endpoint"],
            "metadata": found["metadata"],
            "annotations": orjson.dumps(annotations).decode(),
            "certName": "",
            "tlsSkipVerify": not self._verifies,
        }

    def _write(self, rows: list[dict[str, Any]]) -> None:
        body = _parquet(rows) if self._format == "parquet" else _json_lines(rows)
        self._store.put(_object_name(self._format), body)

    async def close(self) -> None:
        """Do nothing: there are no connections of its own."""


def _object_name(suffix: str) -> str:
    now = datetime.fromtimestamp(time.time(), UTC)  # noqa: TID251  # a time that people read
    return f"{now:%Y-%m-%d}/{now:%H%M%S}-{uuid4().hex}.{suffix}"


def _json_lines(rows: list[dict[str, Any]]) -> bytes:
    return b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows)


def _parquet(rows: list[dict[str, Any]]) -> bytes:
    import pyarrow as pa  # noqa: PLC0415  # an extra
    import pyarrow.parquet as pq  # noqa: PLC0415

    fields = [(name, pa.string()) for name in COLUMNS[:-1]]
    schema = pa.schema([*fields, (COLUMNS[-1], pa.bool_())])
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema), buffer)
    return buffer.getvalue()
