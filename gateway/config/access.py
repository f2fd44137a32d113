"""Who may call: clients, their credentials, and the checks of the configuration itself.

See `gateway.config.models`.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_network
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, model_validator

from gateway.config.permissions import ExternalConfig, RuleConfig
from gateway.config.tls import TlsConfig
from gateway.settings.fields import (
    CLIENT_NAME,
    RATE,
    Duration,
    FullNames,
    FullScalar,
    FullText,
    HeaderName,
    InputFile,
    Name,
    NameOf,
    Names,
    Text,
)
from gateway.settings.model import Model

ClientName = Annotated[str, StringConstraints(pattern=CLIENT_NAME)]
Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA"]
MAX_LEEWAY_S = 300.0


class ClientConfig(Model):
    """A client: what rules and quotas know about it, and the credentials that name it.

    Patterns may contain `*`, `?` and `[...]`. Of several clients that match, the first counts.
    """

    groups: FullNames = ()
    """Groups, for rules and routes. Default: `[]`."""
    tier: FullText | None = None
    """Tier, for rules, quotas and routes. Default: none."""
    labels: Mapping[Name, FullScalar] = Field(default_factory=dict)
    """Labels, for rules and quotas. Default: none."""
    certificates: FullNames = ()
    """Patterns of names in its certificate: a URI, `dns:NAME` in any case, or `cn:NAME`.
    Default: `[]`."""
    subjects: Annotated[Mapping[Name, FullNames], NameOf("issuer")] = Field(default_factory=dict)
    """Patterns of the value that a token names it by, for each issuer of `security.jwt`.
    Default: none."""
    proxied: FullNames = ()
    """Patterns of names that a trusted proxy sends. Default: `[]`."""
    unix_users: FullNames = ()
    """User ids or names of processes on unix sockets. Default: `[]`."""
    enabled: bool = True
    """Whether its credentials are accepted. Default: `true`."""


class KeysConfig(Model):
    """API keys. Clients send one in a header, as a bearer token, or as a `Basic` password."""

    file: InputFile
    """File of hashed keys, which `gateway keys` writes. Changes are in force within 2 s."""
    header: HeaderName = "x-api-key"
    """Header, or gRPC metadata, with a key. Default: `x-api-key`."""


class JwtConfig(Model):
    """An issuer of tokens (JWT). It needs the extra `jwt`."""

    name: ClientName
    """Its name in `clients.NAME.subjects`."""
    issuer: FullText
    """The claim `iss`."""
    audience: FullNames = Field(min_length=1)
    """Values of `aud`, of which a token needs one."""
    jwks: InputFile
    """Its key set: an `https` URL, an `http` URL of this machine, or a file, which is watched."""
    algorithms: tuple[Algorithm, ...] = Field(("RS256", "ES256", "EdDSA"), min_length=1)
    """Algorithms of signatures. Default: `[RS256, ES256, EdDSA]`."""
    leeway: Duration = Field(30.0, le=MAX_LEEWAY_S)
    """Difference of clocks that is tolerated. Default: `30s`."""
    client: FullText = "sub"
    """Claim with the name of the client. A name that begins with `/` is a JSON pointer.
    Default: `sub`."""
    groups: FullText | None = None
    """Claim with further groups, a list or a text. Default: none."""
    unlisted: Literal["refuse", "accept"] = "refuse"
    """What happens to tokens of no client in `clients`: they are refused, or the client is
    called `ISSUERNAME:VALUE`. Default: `refuse`."""
    refresh: Duration = Field(600.0, gt=0)
    """Time between two reads of the key set. Default: `10m`."""
    stale: Duration = 86400.0
    """How long a key set is used without another successful read. Default: `24h`."""
    tls: TlsConfig | None = None
    """TLS to the server of the key set. Default: the authorities of the system."""


class CertificatesConfig(Model):
    """Client certificates, which name clients by their `certificates`."""

    unlisted: Literal["refuse", "accept"] = "refuse"
    """What happens to certificates of no client in `clients`: they count as none, or the client is
    called `cert:` and their first name. Default: `refuse`."""


class ProxyConfig(Model):
    """A proxy that authenticates clients, and tells their names in headers."""

    name: ClientName
    """Name of the proxy."""
    addresses: Names = ()
    """Its addresses or networks (CIDR). Default: `[]`."""
    certificates: FullNames = ()
    """Patterns of names in its certificate, as in `clients.NAME.certificates`. Default: `[]`."""
    client_header: HeaderName
    """Header with the client's name, which is dropped from others."""
    groups_header: HeaderName | None = None
    """Header with groups, separated by commas; likewise. Default: none."""
    unlisted: Literal["refuse", "accept"] = "refuse"
    """What happens to names of no client in `clients`: they are refused, or the client is called
    `PROXYNAME:VALUE`. Default: `refuse`."""

    @model_validator(mode="after")
    def _check_peers(self) -> ProxyConfig:
        if not self.addresses and not self.certificates:
            raise ValueError("a proxy needs 'addresses' or 'certificates', by which it is known")
        for address in self.addresses:
            try:
                ip_network(address, strict=False)
            except ValueError:
                raise ValueError(
                    f"'addresses': {address!r} is no network; expected an address or a network "
                    "such as 10.0.0.0/8"
                ) from None
        return self


class SecurityConfig(Model):
    """Who may call, and checks that the gateway applies to its own configuration."""

    strict: bool = False
    """Refuse to start with what is not safe. The page on security has the list. Default: `false`,
    which warns."""
    keys: KeysConfig | None = None
    """API keys, in a header, as a bearer token or as a `Basic` password. Default: none."""
    jwt: tuple[JwtConfig, ...] = ()
    """Issuers of tokens (JWT). Default: `[]`."""
    certificates: CertificatesConfig | None = None
    """Client certificates that name clients. Default: none."""
    proxies: tuple[ProxyConfig, ...] = ()
    """Proxies that name clients. Default: `[]`."""
    authenticator: Name | None = None
    """What names the client of a request with no credential of these kinds: the entry point of
    an installed `Authenticator`. Default: none."""
    public_health: bool = True
    """Whether live and ready of the *server* need neither a credential nor a rule. Default:
    `true`."""
    token_checks: Annotated[Text, Field(pattern=RATE)] = "200/s"  # noqa: S105  # a rate
    """Most signature checks of new tokens of an address, in each worker; four times as many of
    all. Default: `200/s`."""
    rules: tuple[RuleConfig, ...] = ()
    """What clients may do. Default: `[]`: all that their listener switches on."""
    external: ExternalConfig | None = None
    """A program that decides about calls that the rules allow. Default: none."""
