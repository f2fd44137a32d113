"""Who calls: what an authenticator sees of a request, and the client that it names."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct
from prometheus_client.registry import Collector

from gateway.ir.identity import Identity
from gateway.settings.config_view import ConfigView

Fields = Iterable[tuple[str, str | bytes]]
"""The headers or the metadata of a request. Names of headers may have capitals."""


class Peer:
    """The far end of one connection.

    Args:
        address: Its IP address; "" for a unix socket.
        names: Names in its verified certificate: URIs, `dns:NAME`, `cn:NAME`.
        user_id: The user of the process at the other end of a unix socket; None elsewhere.

    Attributes:
        data: What an authenticator keeps of the connection; None at first.
    """

    __slots__ = ("address", "data", "names", "user_id")

    def __init__(
        self, address: str = "", names: tuple[str, ...] = (), user_id: int | None = None
    ) -> None:
        self.address = address
        self.names = names
        self.user_id = user_id
        self.data: Any = None


class Credentials(Struct, frozen=True, eq=False):
    """What a request and its connection show of their sender.

    Attributes:
        fields: Its headers or metadata. Equal heads of a connection are often the same object.
        peer: Its connection.
        data: What frames carry instead of headers; "" for nothing.
        is_public: It asks for the health of the server, which may be public.
    """

    fields: Fields
    peer: Peer
    data: str = ""
    is_public: bool = False

    def __repr__(self) -> str:
        return f"Credentials of {self.peer.address or 'a connection'}"


class Authenticator(Protocol):
    """Names the client of each request, before its body is read."""

    def authenticate(self, credentials: Credentials, /) -> Identity | Awaitable[Identity]:
        """Return the client. Raises Unauthenticated, Overloaded, Unavailable."""
        ...


@runtime_checkable
class HidingAuthenticator(Authenticator, Protocol):
    """An authenticator that reads headers which nothing behind it sees."""

    def hidden(self, peer: Peer, /) -> frozenset[str]:
        """Return these headers of the request that *peer* sent last, in lower case.

        The gateway asks after `authenticate`, which may keep them in `Peer.data`.
        """
        ...


class Gatekeeper(Collector):
    """Who calls the listeners of a process: by the configuration, and by files that change.

    It has metrics, as a collector.
    """

    @abstractmethod
    def authenticator(self, listener: str, /) -> Authenticator | None:
        """Return what names the clients of a listener; None if nobody asks."""

    @abstractmethod
    def needs_client(self, listener: str, /) -> bool:
        """Return whether each request of a listener needs a credential."""

    @abstractmethod
    def key_header(self) -> str:
        """Return the header with an API key, in lower case."""

    @abstractmethod
    def prepare(self, config: ConfigView, /) -> Callable[[], Mapping[str, Authenticator]]:
        """Read the files of another configuration; return what puts it in force.

        That returns the authenticators of the listeners that ask from then on.

        Raises:
            StartError: A file cannot be used.
        """

    @abstractmethod
    def status(self) -> Sequence[Mapping[str, Any]]:
        """Return what is wrong with files, as warnings."""

    @abstractmethod
    def files(self) -> Sequence[Mapping[str, Any]]:
        """Return the files, with the hash of what is in force of each."""

    @abstractmethod
    def obstacle(self) -> str:
        """Return why no client can be named yet, so that the process is not ready; "" if it can."""

    @abstractmethod
    def tls_files(self) -> Sequence[Any]:
        """Return the `TlsFiles` towards the servers that it asks."""

    @abstractmethod
    def start(self) -> None:
        """Begin to look at the files."""

    @abstractmethod
    async def stop(self) -> None:
        """End that; idempotent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleCall:
    """A call that `gateway explain` asks about.

    Attributes:
        client: Its name; "anonymous" for none.
        groups: Besides those of the configuration.
        claims: The claims of its token.
        operation: One of `operations.OPERATIONS`.
        model: "" for none.
        listener: "" for the first one.
        route: The route that it would take; "" for none.
        elements: Elements of all inputs.
        size_bytes: Size of all inputs.
    """

    client: str
    operation: str = "inference"
    model: str = ""
    version: str = ""
    protocol: str = ""
    listener: str = ""
    route: str = ""
    groups: Sequence[str] = ()
    claims: Mapping[str, Sequence[str]]
    elements: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ExplainedAccess:
    """Whether a client may make a call.

    Attributes:
        decision: "allow" or "deny".
        rule: The first rule that decides; None if no rule does.
        quotas: Names of the quotas that count the call.
        rehearsed: What would be decided if rules with `mode: shadow` were enforced, and by which
            rule; None if that is the same.
        nearest: Where no rule decides, the rule of which the fewest conditions fail; None for none.
        failed: What fails of it.
    """

    decision: str = "allow"
    rule: str | None = None
    quotas: tuple[str, ...] = ()
    rehearsed: str | None = None
    nearest: str | None = None
    failed: str = ""

    @property
    def is_allowed(self) -> bool:
        """Whether the client may make the call."""
        return self.decision == "allow"

    def __str__(self) -> str:
        if self.rule is not None:
            return f"{self.decision}, rule {self.rule}"
        if self.is_allowed:
            return f"{self.decision}, no rule is needed"
        nearest = "" if self.nearest is None else f"; nearest is rule {self.nearest}: {self.failed}"
        return f"{self.decision}, no rule allows it{nearest}"
