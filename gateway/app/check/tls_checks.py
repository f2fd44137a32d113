"""Checks of `tls` in a configuration: keys that are missing, or that do not fit there."""

from collections.abc import Iterator

from gateway.config.models import Config
from gateway.config.tls import TlsConfig
from gateway.config.yaml_tree import Finding, KeyPath

_LISTENER_KEYS = ("client_certificates", "certificates")


def check_tls(config: Config) -> Iterator[Finding]:
    """Yield the problems of `tls` of listeners, upstreams and the admin port."""
    for index, listener in enumerate(config.listeners):
        if listener.tls is not None:
            at: KeyPath = ("listeners", index, "tls")
            yield from _check_server(at, listener.tls, "a listener")
            if listener.transport == "reference" and listener.grpc is not None:
                yield from _check_grpcio(at, listener.tls)
    if config.admin is not None and config.admin.tls is not None:
        yield from _check_server(("admin", "tls"), config.admin.tls, "the admin port")
    external = config.security.external
    if external is not None and external.tls is not None:
        yield from _check_client(("security", "external", "tls"), external.tls)
    for name, upstream in config.upstreams.items():
        if upstream.tls is not None:
            at = ("upstreams", name, "tls")
            yield from _check_client(at, upstream.tls)
            if upstream.transport == "reference" and upstream.all_urls[0].carrier == "grpc":
                yield from _check_grpcio(at, upstream.tls)


def _check_server(at: KeyPath, tls: TlsConfig, owner: str) -> Iterator[Finding]:
    if tls.cert is None or tls.key is None:
        yield at, f"'cert' or 'key' is missing; {owner} needs both"
    if "client_certificates" in tls.model_fields_set and tls.ca is None:
        message = "needs 'ca', the authorities that issue the certificates of clients"
        yield (*at, "client_certificates"), message
    if not tls.verify:
        yield (*at, "verify"), "is for upstreams; use 'client_certificates' of a listener"


def _check_client(at: KeyPath, tls: TlsConfig) -> Iterator[Finding]:
    if (tls.cert is None) != (tls.key is None):
        yield at, "'cert' or 'key' is missing; expected both or neither"
    for key in _LISTENER_KEYS:
        if key in tls.model_fields_set:
            yield (*at, key), "is for listeners; a client has 'cert' and 'key'"


def _check_grpcio(at: KeyPath, tls: TlsConfig) -> Iterator[Finding]:
    """Yield what the C core of gRPC cannot do."""
    for key, is_default in (
        ("client_certificates", tls.client_certificates == "required"),
        ("min_version", tls.min_version == "1.2"),
        ("verify", tls.verify),
    ):
        if not is_default:
            message = "cannot be changed for gRPC with 'transport: reference'; use 'native'"
            yield (*at, key), message
