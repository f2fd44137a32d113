"""What the transports know of the far end of a connection."""

from __future__ import annotations

from typing import Any

from gateway.transports.authentication import peer_of


class Handshake:
    """A TLS handshake whose client showed a certificate."""

    def getpeercert(self) -> dict[str, Any]:
        """Return the names of the certificate, as `ssl` gives them."""
        return {
            "subject": ((("organizationName", "Example"),), (("commonName", "scorer"),)),
            "subjectAltName": (
                ("URI", "dns:admin.internal"),
                ("URI", "CN:admin"),
                ("URI", "spiffe://example.com/ns/fraud/scorer"),
                ("DNS", "scorer.internal"),
                ("IP Address", "10.0.0.7"),
            ),
        }


class Transport:
    """A transport over TLS, as far as its far end goes."""

    def get_extra_info(self, name: str) -> Any:
        """Return what asyncio knows under *name*."""
        return {"peername": ("10.0.0.7", 4000), "ssl_object": Handshake()}.get(name)


def test_a_uri_does_not_stand_for_a_name_of_another_kind() -> None:
    """Names have the order URI, DNS, CN; a URI that begins as another kind is no name."""
    peer = peer_of(Transport())
    expected = ("spiffe://example.com/ns/fraud/scorer", "dns:scorer.internal", "cn:scorer")
    assert expected == peer.names
    assert "10.0.0.7" == peer.address
