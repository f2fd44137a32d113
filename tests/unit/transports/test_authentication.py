"""What the transports know of the far end of a connection."""

from __future__ import annotations

from typing import Any

from gateway.api.access import Credentials, Peer
from gateway.ir.identity import ANONYMOUS, Identity
from gateway.transports.authentication import Authentication, peer_of
from gateway.transports.callers import IdentifiedCaller
from gateway.wire.http import Headers


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


class Fixed:
    """An authenticator that knows nobody."""

    def authenticate(self, _credentials: Credentials, /) -> Identity:
        """Return the client without a name."""
        return ANONYMOUS


def test_a_uri_does_not_stand_for_a_name_of_another_kind() -> None:
    """Names have the order URI, DNS, CN; a URI that begins as another kind is no name."""
    peer = peer_of(Transport())
    expected = ("spiffe://example.com/ns/fraud/scorer", "dns:scorer.internal", "cn:scorer")
    assert expected == peer.names
    assert "10.0.0.7" == peer.address


def test_headers_without_credentials_are_looked_up_as_others() -> None:
    """Names, places and values are those of headers that never had the credential."""
    hidden = frozenset({"authorization"})
    authentication = Authentication(Fixed(), hidden=lambda _peer: hidden)
    caller = IdentifiedCaller(Peer("10.0.0.7"))
    template = {"host": 0, "authorization": 1, "x-id": 2}  # as heads of one template share it
    other = {"authorization": 0, "x-id": 1, "host": 2}
    for number, positions in enumerate((template, template, other, None, template)):
        values = {"Host": "a", "Authorization": "Bearer x", "X-Id": str(number)}
        pairs = [*values.items(), ("x-id", "again")]
        if positions is other:
            pairs = [pairs[1], pairs[2], pairs[0], pairs[3]]
        lowered = tuple([(name.lower(), value) for name, value in pairs])
        headers = Headers(pairs, lowered, positions)
        found = authentication.visible(caller, headers)
        if positions is other:  # then a call of gRPC over the same connection
            metadata = (("authorization", "x"), ("a", "b"))
            assert metadata[1:] == authentication.visible(caller, metadata)
        kept = [pair for pair in pairs if pair[0] != "Authorization"]
        expected = Headers(kept)
        assert expected == found
        assert expected.lowered == found.lowered
        for name in ("host", "authorization", "x-id", "x-other"):
            assert expected.get(name) == found.get(name)
            assert expected.repeats(name) == found.repeats(name)
