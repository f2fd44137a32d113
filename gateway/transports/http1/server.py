"""HttpServer of the native implementation: HTTP/1 and HTTP/2 on one port."""

from gateway.transports.connection_count import ConnectionCount
from gateway.transports.http.interfaces import ListenerState
from gateway.transports.http.listener import HttpListener
from gateway.transports.http1.server_connection import Http1ServerProtocol


class HttpServer(HttpListener):
    """A listener for HTTP/1 and HTTP/2 with native connections."""

    def _make(
        self, listener: ListenerState, count: ConnectionCount, *, reserve: bool
    ) -> Http1ServerProtocol:
        http2 = self.http2_connection
        return Http1ServerProtocol(listener, count, reserve=reserve, http2=http2)
