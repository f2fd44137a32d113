"""The server of a key set: one GET over a connection of its own, without redirects."""

from pathlib import Path
from typing import Final

from gateway.access.key_sets import FETCH_TIMEOUT_S, MAX_BYTES, KeySetError
from gateway.app.access.fetch import fetch
from gateway.app.listen.certificates import client_tls
from gateway.config.access import JwtConfig
from gateway.transports.net.tls_files import TlsFiles

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
        self._url = config.jwks
        self.tls: TlsFiles | None = None
        if config.tls is not None:
            self.tls = TlsFiles(f"jwks {config.name}", client_tls(config.tls, directory))

    async def fetch(self) -> bytes:
        """Return the bytes of the key set. Raises GatewayError, OSError, KeySetError."""
        context = None if self.tls is None else self.tls.context()
        response = await fetch(
            self._url,
            accept="application/json",
            timeout_s=FETCH_TIMEOUT_S,
            max_bytes=MAX_BYTES,
            tls=context,
        )
        if response.status != _OK:
            raise KeySetError(f"the server replied with status {response.status}; expected 200")
        return bytes(response.view)
