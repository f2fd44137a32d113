"""Names in credentials: a blank one names nobody, a wrong one is told to the log and not to clients."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_network
from typing import Any, cast

import pytest

from gateway.access.authenticator import (
    AccessRules,
    InvalidCredential,
    ListenerAuthenticator,
    Mode,
    Proxy,
)
from gateway.access.clients import Clients
from gateway.access.control import PackageAuthenticator
from gateway.api.access import Credentials, Peer
from gateway.config.access import ClientConfig, ProxyConfig
from gateway.ir.calls import InferRequest
from gateway.ir.context import Client, Context, ModelRef
from gateway.ir.errors import Unauthenticated
from gateway.ir.identity import ANONYMOUS, Identity
from gateway.policies.access.rules import AccessRule, CompiledRule
from gateway.routing.match import Matcher, Rule
from gateway.transports.authentication import peer_of
from gateway.transports.reference.grpc_server import certificate_names
from gateway.wire.http import Headers
from tests.cases.tokens import token
from tests.unit.access.test_tokens import Setup

BLANK = ["", " ", "\t", "  \t ", "\u00a0", "\u2003", "\x1f", "\u200b", "\u2060\ufeff "]
EDGE = ProxyConfig(
    name="edge", addresses=("10.0.0.0/8",), client_header="x-user", unlisted="accept"
)


def ask(
    *pairs: tuple[str, str],
    peer: Peer | None = None,
    mode: Mode = "required",
    proxies: tuple[str, ...] = ("10.0.0.0/8",),
    proxy: ProxyConfig = EDGE,
    **clients: ClientConfig,
) -> Identity:
    """Return the client of a request from a trusted proxy."""
    rules = AccessRules(
        Clients({"any": ClientConfig(proxied=("*",)), **clients} if mode == "required" else {}),
        proxies=(Proxy(proxy, [ip_network(each) for each in proxies]),),
    )
    listener = ListenerAuthenticator("main", mode, rules, lambda *_: None)
    found = listener.authenticate(Credentials(Headers(pairs), peer or Peer("10.0.0.7")))
    assert isinstance(found, Identity)
    return found


@pytest.mark.parametrize("name", BLANK)
def test_a_blank_name_of_a_proxy_was_a_client(name: str) -> None:
    """It is as if it were missing, with `unlisted: accept` and the pattern `*`."""
    with pytest.raises(Unauthenticated, match="a credential is missing"):
        ask(("X-User", name))
    assert ask(("x-user", name), mode="optional") is ANONYMOUS
    with pytest.raises(InvalidCredential, match="2 names of the client"):
        ask(("x-user", name), ("x-user", "bob"), mode="optional")


@pytest.mark.parametrize("name", [each for each in BLANK if each])
def test_a_blank_subject_was_a_client(name: str) -> None:
    """A token that names nobody is refused, and blank groups are none."""
    with pytest.raises(InvalidCredential, match="does not name its client"):
        Setup(unlisted="accept").identity(token(sub=name))
    identity = Setup(groups="teams").identity(token(teams=["", name, "a"]))
    assert identity.groups == {"finance", "a"}


def of_package(identity: Identity) -> Identity:
    """Return whom a package names by *identity*."""

    class Package:
        def authenticate(self, _credentials: Credentials, /) -> Identity:
            return identity

    found = PackageAuthenticator(Package(), "blank").authenticate(Credentials((), Peer()))
    assert isinstance(found, Identity)
    return found


def test_a_blank_name_of_a_package_was_a_client() -> None:
    """The request has no credential then."""
    with pytest.raises(Unauthenticated, match="a credential is missing"):
        of_package(Identity(" "))
    whole = Identity("bob", frozenset(["a"]), "gold", {"team": "x"})
    assert of_package(whole) is whole


def blank_facts(name: str) -> list[Identity]:
    """Return clients of each kind of credential, with *name* as group, label, tier and claim."""
    groups = EDGE.model_copy(update={"groups_header": "x-groups"})
    return [
        ask(("x-user", "bob"), ("x-groups", f"{name},, {name}"), proxy=groups),
        of_package(Identity("bob", frozenset([name]), name, {"team": name})),
        Setup(groups="teams", client="/who/0", unlisted="accept").identity(
            token(who=["bob"], teams=[name], scope=name, team=name)
        ),
    ]


CONDITIONS: list[dict[str, Any]] = [
    {"groups": ("*",)},
    {"tiers": ("*",)},
    {"labels": {"team": ("*",)}},
    {"claims": {"team": ("*",)}},
    {"claims": {"/teams/0": ("*",)}},
    {"claims": {"scope": ("*",)}},
]


@pytest.mark.parametrize("condition", CONDITIONS, ids=str)
@pytest.mark.parametrize("name", BLANK)
def test_a_blank_group_label_tier_or_claim_met_a_condition(
    name: str, condition: dict[str, Any]
) -> None:
    """It is as if it were missing, in rules and in routes."""
    rule = CompiledRule(AccessRule(name="r", operations=("all",), **condition))
    for identity in blank_facts(name):
        assert not (rule.has_client(identity) and rule.has_claims_of(identity))
        if condition.keys() <= {"groups", "tiers"}:
            call = InferRequest(
                model=ModelRef("m"), context=Context(client=Client(identity=identity))
            )
            assert Matcher([Rule(**condition)]).find(call) is None


class Transport:
    """A transport over TLS, whose peer shows a certificate."""

    def __init__(self, certificate: Mapping[str, Any], address: str = "10.0.0.7") -> None:
        self._found = {"peername": (address, 4000), "ssl_object": self}
        self._certificate = certificate

    def get_extra_info(self, name: str) -> Any:
        return self._found.get(name)

    def getpeercert(self) -> Mapping[str, Any]:
        return self._certificate


def certificate(*alternatives: tuple[str, Any], common: str = "") -> Mapping[str, Any]:
    subject = ((("commonName", common),),) if common else ()
    return {"subject": subject, "subjectAltName": alternatives}


@pytest.mark.parametrize("name", BLANK)
def test_a_blank_name_of_a_certificate_was_a_client(name: str) -> None:
    """Neither alternative names nor a common name that is blank count; unknown kinds are none."""
    found = certificate(("URI", name), ("DNS", name), ("DirName", ((("C", "X"),),)), common=name)
    assert () == peer_of(Transport(found)).names
    assert () == named_by_grpcio(name, common=name)


def named_by_grpcio(*alternatives: str, common: str = "") -> tuple[str, ...]:
    """Return the names of a client whose certificate the reference server of gRPC verified."""

    class Verified:
        def auth_context(self) -> Mapping[str, list[bytes]]:
            return {
                "x509_subject_alternative_name": [each.encode() for each in alternatives],
                "x509_common_name": [common.encode()],
            }

    return tuple(certificate_names(cast("Any", Verified())))


def test_other_alternative_names_were_dns_names() -> None:
    """Neither addresses nor a URI that begins as another name stand for a DNS name."""
    others = ("10.0.0.7", "::1", "root@web.example", "dns://web.example", "cn://root", "urn:x")
    assert () == named_by_grpcio(*others)
    found = named_by_grpcio("spiffe://a/b", "Web.Example", "7.example", common="C")
    assert ("spiffe://a/b", "dns:web.example", "dns:7.example", "cn:C") == found


@pytest.mark.parametrize("pattern", ["dns:Web.Example", "DNS:*.EXAMPLE", "*.Example", "dns:web*"])
def test_dns_names_of_certificates_have_no_case(pattern: str) -> None:
    """Neither in the pattern nor in the certificate; other names have."""
    peer = peer_of(Transport(certificate(("DNS", "wEB.exAMPLE"), common="Web.Example")))
    clients = Clients({"web": ClientConfig(certificates=(pattern,))})
    assert "web" == clients.certificates.client(peer.names[0])
    assert clients.certificates.client("cn:web.other") is None


@pytest.mark.parametrize("network", ["192.0.2.0/24", "::ffff:192.0.2.0/120", "192.0.2.7/32"])
def test_addresses_of_a_socket_of_both_families_were_unknown(network: str) -> None:
    """An address of IPv4 is one, however the socket and the file write it."""
    peer = peer_of(Transport({}, "::ffff:192.0.2.7"))
    assert "192.0.2.7" == peer.address
    assert "any" == ask(("x-user", "bob"), peer=peer, proxies=(network,)).name
    assert "2001:db8::7" == peer_of(Transport({}, "2001:db8::7")).address


def test_a_certificate_of_no_client_was_a_missing_credential() -> None:
    """The text says what was sent; its name is for the log alone, cut and escaped."""
    peer = peer_of(Transport(certificate(common="evil\x1b" + "x" * 500)))
    with pytest.raises(InvalidCredential, match="the certificate names no client") as caught:
        ask(peer=peer)
    assert "evil" not in caught.value.message
    assert caught.value.credential.startswith("cn:evil\\x1bxxx")
    assert len(caught.value.credential) < 200


@pytest.mark.parametrize(
    ("make", "is_accepted"),
    [
        (token, True),
        (lambda **more: token(exp=1, **more), False),
        (lambda **more: token(aud="other", **more), False),
        (lambda **more: token(**more)[:-8] + "AAAAAAAA", False),
        (lambda **more: token(**{**more, "sub": "nobody\n" + "y" * 300}), False),
    ],
)
def test_the_log_did_not_name_the_owner_of_a_token(make: Any, is_accepted: bool) -> None:
    """Accepted and refused tokens are shown with subject, key and issuer, and clients read none."""
    sent = make(sub="svc-fraud")
    if is_accepted:
        shown = Setup().identity(sent).shown
    else:
        with pytest.raises(InvalidCredential) as caught:
            Setup().identity(sent)
        shown = caught.value.shown
        assert not any(value in caught.value.message for value in shown.values())
    assert {"subject", "kid", "issuer"} == set(shown)
    assert shown["subject"].startswith(("svc-fraud", "nobody\\n"))
    assert all(value.isprintable() and len(value) < 140 for value in shown.values())
