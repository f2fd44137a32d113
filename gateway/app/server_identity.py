"""What the gateway knows about the server of an endpoint: its identity and its weaknesses."""

from typing import Final

import structlog

from gateway.ir.metadata import ServerMetadata
from gateway.protocols.oip.server_defects import (
    CANCELLED_CALLS,
    GRPC,
    ends_at_empty_classes,
    weakness_lines,
    withholds_before,
)
from gateway.settings.units import Url
from gateway.transports.grpc.withheld import WithheldCalls

log = structlog.get_logger(__name__)

_DESCRIBED: Final = "docs/protection.md, and weaknesses of the endpoint in /status"


class ServerIdentity:
    """Logs the identity and the weaknesses of an endpoint's server, and sets its cancellation.

    Attributes:
        server: The metadata that the server told last; None if it has told none.
        has_statistics: Whether the server is known to count inferences.

    Args:
        upstream: The name of the upstream in the log.
        endpoint: The name of the endpoint in the log.
        url: The URL of the endpoint.
        cancellation: The configuration key `cancellation`.
        withheld: The cancelled calls of its client.
    """

    def __init__(
        self, upstream: str, endpoint: str, url: Url, cancellation: str, withheld: WithheldCalls
    ) -> None:
        self._names = {"upstream": upstream, "endpoint": endpoint}
        self._url = url
        self._cancellation = cancellation
        self._withheld = withheld
        self.server: ServerMetadata | None = None
        self.has_statistics = False

    @property
    def withheld_calls(self) -> int:
        """The calls without a client that still run at the endpoint."""
        return self._withheld.pending

    def ends_at_empty_classes(self) -> bool:
        """Return whether the server may end at a request for classes of an empty output."""
        return may_end_at_empty_classes(self._url, self.server)

    def weaknesses(self) -> list[str]:
        """Return a line for each known weakness of the server."""
        if self.server is None:
            return []
        return weakness_lines(self.server, self._url.carrier, withheld=self._withheld.is_enabled)

    def __call__(self, server: ServerMetadata | None) -> None:
        """Set the server's metadata; None if it is unknown."""
        if self._cancellation == "auto" and self._url.protocol == "oip":
            self._withheld.is_enabled = withholds_before(server)
        self.has_statistics = server is not None and "statistics" in server.extensions
        if server is None or server == self.server:
            return
        self.server = server
        names = self._names
        log.info("server identified", server=server.name, version=server.version, **names)
        weaknesses = self.weaknesses()
        if weaknesses:
            log.info("known weaknesses", count=len(weaknesses), described=_DESCRIBED, **names)
        cancelled = self._url.carrier == GRPC and CANCELLED_CALLS.affects(server)
        if cancelled and not self._withheld.is_enabled:
            row = CANCELLED_CALLS
            log.warning(
                "cancelled calls can end the server",
                use="cancellation: auto",
                weakness=row.source,
                repaired="2.59.0",
                effect=row.effect,
                **names,
            )


def may_end_at_empty_classes(url: Url, server: ServerMetadata | None) -> bool:
    """Return whether *server* may end at a request for classes of an empty output.

    Args:
        url: The URL of the server.
        server: Its metadata; None if they are unknown.
    """
    return url.protocol == "oip" and ends_at_empty_classes(server, url.carrier)
