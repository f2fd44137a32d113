"""HTTP/1 server of the native make."""

from __future__ import annotations

from gateway.transports.admission import ConnectionCount
from gateway.transports.http.interfaces import ListenerState
from gateway.transports.http.listener import HttpListener
from gateway.transports.http1.server_connection import Http1ServerProtocol


class HttpServer(HttpListener):
    """A listener for HTTP/1 whose connections are our own."""

    def _make(
        self, listener: ListenerState, count: ConnectionCount, *, reserve: bool
    ) -> Http1ServerProtocol:
        return Http1ServerProtocol(listener, count, reserve=reserve)
