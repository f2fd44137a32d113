"""PostSink: one POST for each event, in the binary mode of CloudEvents."""

import os
from collections.abc import Sequence
from time import monotonic
from typing import Final
from urllib.parse import urlsplit

import structlog

from gateway.config.tls import client_tls
from gateway.config.yaml_tree import resolve_references
from gateway.events.definition import SinkDefinition
from gateway.events.sinks.form import CONTENT_TYPE, header_value
from gateway.events.sinks.queue import QueuedEvent, SendOutcome
from gateway.events.sinks.writer import EventWriter, WrittenEvent
from gateway.ir.errors import ConnectFailure, GatewayError
from gateway.settings.units import parse_header_value
from gateway.transports.contract import ClientLimits
from gateway.transports.http1.client import HttpClient
from gateway.transports.net.tls_files import TlsFiles
from gateway.wire.errors import SUCCESSES
from gateway.wire.http import Headers, HttpRequest, HttpResponse

log = structlog.get_logger(__name__)

_REPLY_BYTES: Final = 1 << 20
"""Largest reply; nobody reads it."""
_CONNECT_SHARE: Final = 0.8
"""Of the time of an attempt: a connection that is not made by then fails as such."""
_RENEW_S: Final = 2.0
"""Files of headers are read again after this time."""
_AGENT: Final = ("user-agent", "tensor-gateway")
_REFUSALS: Final = frozenset(range(400, 500)) - {408, 429}


class PostSink:
    """A server that gets events over HTTP.

    Args:
        definition: The sink.
        writer: Writes events.

    Raises:
        OSError: A TLS file cannot be read.
        ValueError: A TLS file has invalid content, or the URL is malformed.
    """

    def __init__(self, definition: SinkDefinition, writer: EventWriter) -> None:
        config = definition.config
        parts = urlsplit(config.url)
        self._writer = writer
        self._path, self._query = parts.path or "/", parts.query
        self._definition = definition
        self._headers = self._own_headers()
        self._read_at = monotonic()
        tls = None
        if config.tls is not None:
            files = client_tls(config.tls, definition.directory)
            tls = TlsFiles(f"events {definition.name}", files)
        limits = ClientLimits(
            message_bytes=_REPLY_BYTES,
            connections=config.concurrency,
            connect_timeout_s=_CONNECT_SHARE * config.timeout,
        )
        server = f"{parts.scheme}://{parts.netloc}"
        self._client = HttpClient(server, limits, tls=None if tls is None else tls.context())

    async def send(self, events: Sequence[QueuedEvent], /) -> Sequence[tuple[SendOutcome, str]]:
        """Send one event."""
        return [await self._post(await self._writer.write(each)) for each in events]

    async def _post(self, event: WrittenEvent) -> tuple[SendOutcome, str]:
        fields = [(f"ce-{name}", header_value(each)) for name, each in event.attributes.items()]
        headers = Headers((*self._renewed_headers(), *fields))
        request = HttpRequest("POST", self._path, self._query, headers, (event.body,))
        try:
            response: HttpResponse = await self._client.send(request, deadline=None)
        except ConnectFailure as error:
            return SendOutcome.UNREACHABLE, error.message
        except GatewayError as error:
            return SendOutcome.FAILED, error.message
        if response.status in SUCCESSES:
            return SendOutcome.DELIVERED, ""
        reason = f"the sink replied with status {response.status}"
        refused = response.status in _REFUSALS
        return (SendOutcome.REFUSED if refused else SendOutcome.FAILED), reason

    def _own_headers(self) -> tuple[tuple[str, str], ...]:
        """Return the headers of all requests, with what files have now."""
        values = {name: str(text) for name, text in self._definition.config.request_headers.items()}
        for name, text in self._definition.header_texts.items():
            found = resolve_references(text, os.environ, self._definition.directory)
            values[name] = parse_header_value(found)
        return (("content-type", CONTENT_TYPE), _AGENT, *values.items())

    def _renewed_headers(self) -> tuple[tuple[str, str], ...]:
        """Return the headers of all requests; files are read again after some time."""
        if self._definition.header_texts and monotonic() - self._read_at >= _RENEW_S:
            self._read_at = monotonic()
            try:
                self._headers = self._own_headers()
            except (OSError, ValueError) as error:  # it may be half written
                log.warning("headers not renewed", sink=self._definition.name, reason=str(error))
        return self._headers

    async def close(self) -> None:
        """Close the connections; idempotent."""
        await self._client.close()
