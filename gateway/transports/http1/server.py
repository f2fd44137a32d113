"""HTTP/1 server of the native make."""

from __future__ import annotations

from gateway.transports.admission import ConnectionCount
from gateway.transports.http.interfaces import Listener
from gateway.transports.http.listener import HttpListener
from gateway.transports.http1.server_connection import Door


class HttpServer(HttpListener):
    """A listener for HTTP/1 whose connections are our own."""

    def _make(self, listener: Listener, count: ConnectionCount, *, reserve: bool) -> Door:
        return Door(listener, count, reserve=reserve)
