"""What the gateway knows about the server of an endpoint: its identity and its weaknesses."""

from collections.abc import Iterator
from typing import Final

import structlog

from gateway.api.protocol import DefectKind, ProtocolSpec, ServerDefect
from gateway.ir.metadata import ServerMetadata
from gateway.registry import protocol
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
        self._spec = protocol(url.protocol)
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
        return self._spec.may_have(DefectKind.EMPTY_CLASSES, self.server, self._url.carrier)

    def weaknesses(self) -> list[str]:
        """Return a line for each known weakness of the server."""
        if self.server is None:
            return []
        return list(
            defect_lines(
                self._spec, self.server, self._url.carrier, withheld=self._withheld.is_enabled
            )
        )

    def own_posts(self) -> tuple[str, ...]:
        """Return the paths outside of the protocol that clients of the server POST to."""
        return () if self.server is None else self._spec.own_posts(self.server.name)

    def __call__(self, server: ServerMetadata | None) -> None:
        """Set the server's metadata; None if it is unknown."""
        if self._cancellation == "auto":
            self._withheld.is_enabled = self._spec.may_have(
                DefectKind.CANCELLED_CALLS, server, self._url.carrier
            )
        self.has_statistics = server is not None and "statistics" in server.extensions
        if server is None or server == self.server:
            return
        self.server = server
        names = self._names
        log.info("server identified", server=server.name, version=server.version, **names)
        weaknesses = self.weaknesses()
        if weaknesses:
            log.info("known weaknesses", count=len(weaknesses), described=_DESCRIBED, **names)
        if self._withheld.is_enabled:
            return
        for defect in _known_defects(self._spec, server, self._url.carrier):
            if defect.kind is DefectKind.CANCELLED_CALLS:
                log.warning(
                    "cancelled calls can end the server",
                    use="cancellation: auto",
                    weakness=defect.source,
                    repaired=defect.repaired_version,
                    effect=defect.effect,
                    **names,
                )


def defect_lines(
    spec: ProtocolSpec, server: ServerMetadata, carrier: str, *, withheld: bool
) -> Iterator[str]:
    """Yield a line for each known weakness of a server, for the status page.

    Args:
        spec: Its protocol.
        server: Its metadata.
        carrier: The carrier to it.
        withheld: Whether cancellation is withheld.
    """
    for defect in _known_defects(spec, server, carrier):
        is_forwarded = defect.kind is DefectKind.CANCELLED_CALLS and not withheld
        forwarded = "cancellation is forwarded: use `cancellation: auto`" if is_forwarded else ""
        yield defect.line(server, forwarded)


def _known_defects(
    spec: ProtocolSpec, server: ServerMetadata, carrier: str
) -> Iterator[ServerDefect]:
    """Yield the defects of a server with its name, without those of any server."""
    return (each for each in spec.defects if each.server and each.affects(server, carrier))
