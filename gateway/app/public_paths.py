"""Which paths of a listener its protocols claim, and which need no credential."""

from collections.abc import Sequence

from gateway.access.authenticator import ListenerAuthenticator
from gateway.api.access import Authenticator
from gateway.api.protocol import HttpBinding
from gateway.app.path_ownership import owned_paths
from gateway.config.models import ListenerConfig
from gateway.registry import protocol, protocol_names
from gateway.transports.authentication import Authentication
from gateway.transports.grpc.health import CHECK


def listener_authentication(authenticator: Authenticator, config: ListenerConfig) -> Authentication:
    """Return what asks *authenticator* who sends the requests of a listener."""
    public = public_paths(config)
    if isinstance(authenticator, ListenerAuthenticator):
        return Authentication(authenticator, public, authenticator.hidden)
    return Authentication(authenticator, public)


def public_paths(config: ListenerConfig) -> frozenset[str]:
    """Return the paths and methods of a listener that ask for the health of the server."""
    found: set[str] = {CHECK}
    for name in config.protocols or protocol_names():
        spec = protocol(name)
        if spec.http is not None:
            claimed = path_prefixes(name, spec.http, config)
            found.update(path for path in spec.http.public if path.startswith(tuple(claimed)))
            found.update(spec.http.public_paths(config.options.get(spec.name, {})))
        found.update(() if spec.grpc is None else spec.grpc.public)
    for stream in config.streams:
        spec = protocol(stream.protocol)
        found.update(() if spec.stream is None else spec.stream.public)
        found.update(() if spec.http is None else spec.http.public)
        found.update(() if spec.grpc is None else spec.grpc.public)
    return frozenset(found)


def path_prefixes(name: str, binding: HttpBinding, config: ListenerConfig) -> Sequence[str]:
    """Return the path prefixes of a protocol; "/" among them if it is the only one here."""
    prefixes = owned_paths(config)[name]
    names = config.protocols or protocol_names()
    is_only = (
        sum(protocol(each).http is not None for each in names) == 1 and config.passthrough is None
    )
    return (*prefixes, "/") if is_only and binding.any_path else prefixes
