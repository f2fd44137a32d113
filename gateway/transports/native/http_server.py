"""HTTP/1 server of the native make."""

from __future__ import annotations

from gateway.transports.admission import ConnectionCount
from gateway.transports.http_listener import HttpListener
from gateway.transports.http_sides import Listener
from gateway.transports.native.http_connection import Door


class HttpServer(HttpListener):
    """A listener for HTTP/1 whose connections are our own."""

    def _make(self, listener: Listener, count: ConnectionCount, *, reserve: bool) -> Door:
        return Door(listener, count, reserve=reserve)
