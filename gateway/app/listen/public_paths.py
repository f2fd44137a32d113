"""Which paths and methods of a listener need no credential."""

from collections.abc import Mapping

from gateway.access.authenticator import ListenerAuthenticator
from gateway.api.access import Authenticator
from gateway.app.listen.path_ownership import ProtocolPaths
from gateway.config.models import ListenerConfig
from gateway.registry import protocol, protocol_names
from gateway.transports.authentication import Authentication
from gateway.transports.grpc.health import CHECK, WATCH
from gateway.wire.path_claims import Passing


def listener_authentication(
    authenticator: Authenticator, config: ListenerConfig, paths: Mapping[str, ProtocolPaths]
) -> Authentication:
    """Return what asks *authenticator* who sends the requests of a listener.

    Args:
        authenticator: Knows the clients.
        config: The listener.
        paths: The paths of its protocols.
    """
    public = public_paths(config, paths)
    if isinstance(authenticator, ListenerAuthenticator):
        return Authentication(authenticator, public, authenticator.hidden)
    return Authentication(authenticator, public)


def public_paths(config: ListenerConfig, paths: Mapping[str, ProtocolPaths]) -> frozenset[str]:
    """Return the paths and methods of a listener that ask for the health of the server."""
    found: set[str] = {CHECK, WATCH}
    for name in config.protocols or protocol_names():
        spec = protocol(name)
        if spec.http is not None:
            # A probe without a credential goes to no server behind the listener.
            own = [each for each in paths[name].claims if each.passes is not Passing.FOUND]
            found.update(each.path for each in own if each.is_public)
            prefixes = tuple([each.path for each in own if not each.is_whole])
            found.update(path for path in spec.http.public if path.startswith(prefixes))
        found.update(() if spec.grpc is None else spec.grpc.public)
    for stream in config.streams:
        spec = protocol(stream.protocol)
        found.update(() if spec.stream is None else spec.stream.public)
        found.update(() if spec.http is None else spec.http.public)
        found.update(() if spec.grpc is None else spec.grpc.public)
    return frozenset(found)
