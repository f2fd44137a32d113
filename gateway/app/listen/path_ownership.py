"""The HTTP paths of a listener: which of its protocols has each, and which need no credential."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple

from gateway.api.access import Authenticator, HidingAuthenticator
from gateway.config.models import ListenerConfig, UpstreamConfig
from gateway.config.yaml_tree import KeyPath
from gateway.registry import protocol, protocol_names
from gateway.transports.authentication import Authentication
from gateway.transports.grpc.health import CHECK, WATCH
from gateway.wire.heads.path_claims import ClaimKind, Passing, PathClaim

_EVERY_PATH: Final = PathClaim("/")
_FIRM: Final = 2
_STRENGTHS: Final = {
    ClaimKind.EXCLUSIVE: _FIRM,
    ClaimKind.SHARED: _FIRM,
    ClaimKind.LISTED: 1,
    ClaimKind.YIELDED: 0,
}
_NO_UPSTREAMS: Final[Mapping[str, UpstreamConfig]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ProtocolPaths:
    """The paths of a listener that one of its protocols has.

    Attributes:
        claims: Its claims of them.
        shared: Those that another protocol yields, whose clients read what this one writes.
    """

    claims: tuple[PathClaim, ...] = ()
    shared: tuple[str, ...] = ()

    @property
    def prefixes(self) -> tuple[str, ...]:
        """The paths that have those below them, too."""
        return tuple([each.path for each in self.claims if not each.is_whole])

    @property
    def whole(self) -> tuple[str, ...]:
        """The paths without those below them."""
        return tuple([each.path for each in self.claims if each.is_whole])

    @property
    def passes(self) -> Mapping[str, Passing]:
        """What goes to the server behind the listener, by path."""
        return {each.path: each.passes for each in self.claims}


class _ListenerClaim(NamedTuple):
    """The claim of one protocol on a listener."""

    name: str
    spec_name: str
    claim: PathClaim
    strength: int


class PathConflictError(ValueError):
    """Two protocols of a listener claim a path.

    Attributes:
        at: The key of the listener that adds one of the claims; () if none does.
    """

    def __init__(self, owner: _ListenerClaim, other: _ListenerClaim) -> None:
        added = [each for each in (other, owner) if each.claim.option]
        settings = [f"options.{each.spec_name}.{each.claim.option}" for each in added]
        super().__init__(
            f"path {other.claim.path!r} belongs to {owner.name} and to {other.name}; expected only "
            f"one of them ({' or '.join(['protocols', *settings])} of the listener)"
        )
        self.at: KeyPath = ("options", added[0].spec_name) if added else ()


def owned_paths(
    config: ListenerConfig, upstreams: Mapping[str, UpstreamConfig] = _NO_UPSTREAMS
) -> Mapping[str, ProtocolPaths]:
    """Return the paths of each HTTP protocol of a listener, by the name of the protocol.

    Args:
        config: The listener. Its options are correct.
        upstreams: The upstreams of the configuration, by name.

    Raises:
        PathConflictError: Two protocols claim a path, and no rule says which of them has it.
    """
    names = [name for name in config.protocols or protocol_names() if protocol(name).http]
    entries = [each for name in names for each in _entries(name, config, upstreams)]
    owners: dict[str, str] = {}
    firm: dict[str, _ListenerClaim] = {}
    # Of equal claims the first has the path; in an error a claim of an option comes second.
    for entry in sorted(entries, key=lambda each: (-each.strength, bool(each.claim.option))):
        owners.setdefault(entry.claim.path, entry.name)
        if entry.strength == _FIRM:
            first = firm.setdefault(entry.claim.path, entry)
            if first.name != entry.name:
                raise PathConflictError(first, entry)
    for first, added in _added_below(entries):
        raise PathConflictError(first, added)
    yielded = {each.claim.path for each in entries if owners[each.claim.path] != each.name}
    found: dict[str, ProtocolPaths] = {}
    for name in names:
        owned = [
            each.claim for each in entries if each.name == name and owners[each.claim.path] == name
        ]
        shared = [
            each.path for each in owned if each.kind is ClaimKind.SHARED and each.path in yielded
        ]
        if _has_every_path(name, names, config):
            owned.append(_EVERY_PATH)
        found[name] = ProtocolPaths(tuple(owned), tuple(shared))
    return found


def _entries(
    name: str, config: ListenerConfig, upstreams: Mapping[str, UpstreamConfig]
) -> Iterator[_ListenerClaim]:
    """Yield the claims of a protocol, as the listener uses it."""
    spec = protocol(name)
    binding = spec.http
    assert binding is not None  # noqa: S101  # the caller has found it
    is_listed = config.protocols is not None
    behind = _behind(config, upstreams)
    is_offered = config.passthrough is not None and not (
        is_listed or spec.name in config.options or spec.name in behind
    )
    for claim in binding.all_claims(config.options.get(spec.name, {})):
        found = claim
        if claim.passes is Passing.FOUND and not is_offered:
            found = claim._replace(passes=Passing.NOTHING)
        if claim.passes is Passing.UNKEYED and is_listed:
            found = claim._replace(passes=Passing.NAMED)
        elif claim.passes is Passing.UNKEYED and claim.path in _written_by(behind):
            found = claim._replace(passes=Passing.READ)
        is_firm = is_listed and claim.kind is ClaimKind.LISTED
        yield _ListenerClaim(name, spec.name, found, _FIRM if is_firm else _STRENGTHS[claim.kind])


def _written_by(names: frozenset[str]) -> frozenset[str]:
    """Return the paths whose responses servers of these protocols write for all clients."""
    bindings = [protocol(name).http for name in protocol_names() if name in names]
    claims = [each for one in bindings if one is not None for each in one.all_claims({})]
    return frozenset(each.path for each in claims if each.passes is Passing.WRITES)


def _behind(config: ListenerConfig, upstreams: Mapping[str, UpstreamConfig]) -> frozenset[str]:
    """Return the protocol of the server behind the passthrough of a listener."""
    if config.passthrough is None or config.passthrough.upstream not in upstreams:
        return frozenset()
    return frozenset(each.protocol for each in upstreams[config.passthrough.upstream].all_urls)


def _added_below(entries: list[_ListenerClaim]) -> Iterator[tuple[_ListenerClaim, _ListenerClaim]]:
    """Yield each prefix of an option that is below a path which another protocol always has."""
    added = [each for each in entries if each.claim.option and not each.claim.is_whole]
    fixed = [each for each in entries if not each.claim.option and each.strength == _FIRM]
    for other in added:
        for first in fixed:
            if first.name != other.name and other.claim.is_below(first.claim):
                yield first, other


def _has_every_path(name: str, names: list[str], config: ListenerConfig) -> bool:
    """Return whether a protocol is alone: its clients then read the error of any path."""
    return names == [name] and config.passthrough is None


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
    if isinstance(authenticator, HidingAuthenticator):
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
