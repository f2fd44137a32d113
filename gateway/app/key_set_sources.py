"""The server of a key set: one GET over a connection of its own, without redirects."""

from pathlib import Path
from time import monotonic
from typing import Final
from urllib.parse import urlsplit

from gateway.access.key_sets import FETCH_TIMEOUT_S, MAX_BYTES, KeySetError
from gateway.app.certificates import client_tls
from gateway.config.access import JwtConfig
from gateway.transports.contract import ClientLimits
from gateway.transports.http1.client import HttpClient
from gateway.transports.net.tls_files import TlsFiles
from gateway.wire.http import Headers, HttpRequest, HttpResponse

_LIMITS: Final = ClientLimits(
    message_bytes=MAX_BYTES, connections=1, connect_timeout_s=FETCH_TIMEOUT_S
)
_HEADERS: Final = Headers((("Accept", "application/json"), ("User-Agent", "tensor-gateway")))
_OK: Final = 200


class KeySetSource:
    """Fetches the key set of an issuer.

    Args:
        config: The issuer.
        directory: TLS files are relative to it.

    Attributes:
        tls: Its TLS files; None where the system's authorities are used.

    Raises:
        OSError: A TLS file cannot be read.
        ValueError: A TLS file has invalid content.
    """

    def __init__(self, config: JwtConfig, directory: Path) -> None:
        parts = urlsplit(config.jwks)
        self._server = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        self._path = parts.path or "/"
        self._query = parts.query
        self.tls: TlsFiles | None = None
        if config.tls is not None:
            self.tls = TlsFiles(f"jwks {config.name}", client_tls(config.tls, directory))

    async def fetch(self) -> bytes:
        """Return the bytes of the key set. Raises GatewayError, OSError, KeySetError."""
        context = None if self.tls is None else self.tls.context()
        client = HttpClient(self._server, _LIMITS, tls=context)
        try:
            request = HttpRequest("GET", self._path, self._query, _HEADERS)
            response: HttpResponse = await client.send(
                request, deadline=monotonic() + FETCH_TIMEOUT_S
            )
        finally:
            await client.close()
        if response.status != _OK:
            raise KeySetError(f"the server replied with status {response.status}; expected 200")
        return bytes(response.view)
