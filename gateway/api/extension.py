"""Extension: a wing of the gateway, with keys, commands, admin pages and parts of its processes.

The gateway knows an extension by these classes alone. `registry.extensions` finds it. `Extension`
follows the version of the API; the other classes here may change with any release.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from socket import socket
from types import MappingProxyType
from typing import Any, Final, Protocol, TypeVar

from prometheus_client.core import Metric as MetricFamily

from gateway.api.access import ExampleCall, ExplainedAccess, Gatekeeper
from gateway.api.admin import AdminRoute
from gateway.api.layer import Layer, LayerContext
from gateway.api.tap import CountCall, RouteTap, Tap
from gateway.ir.calls import Call
from gateway.ir.errors import ErrorCode
from gateway.settings.config_view import ConfigView, Finding
from gateway.settings.setting import Setting
from gateway.telemetry.names import Metric

T = TypeVar("T")

Reports = Mapping[str, Mapping[str, Any] | None]
"""The reply of each serving process, by its name; None of one that is late."""


class TrafficShift(Protocol):
    """The share of a route's calls that goes to the target which replaces the others."""

    @property
    def target(self) -> str:
        """The name of the target; its weight in the file is 0."""

    @property
    def share(self) -> float:
        """The part of the calls that the target gets, from 0 to 1."""

    @property
    def watched(self) -> frozenset[str]:
        """The targets whose inferences `ended` is called for."""

    def moves(self, call: Call[Any], /) -> bool:
        """Return whether a call that belongs to no open sequence goes to the target."""

    def ended(self, target: str, code: ErrorCode | None, /) -> None:
        """Receive how an inference of a watched target ended; None for success."""


@dataclass(frozen=True, slots=True)
class PartSetup:
    """What the leading process gives an extension's part of a serving process.

    Attributes:
        document: JSON values.
        sockets: Ends of sockets, by names of the extension's own choice.
        files: Descriptors of open files, by names of the extension's own choice.
    """

    document: Mapping[str, Any] = field(default_factory=dict)
    sockets: Mapping[str, socket] = field(default_factory=dict)
    files: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReplyNotes:
    """Adds what an extension tells clients to responses, besides the id of the request.

    Attributes:
        http: Takes the `QuotaHeaders` of a protocol, or None, and returns what takes an
            `HttpResponse` and the id, and returns the response with both.
        grpc: Takes a `GrpcResponse` and the id, and returns the response with both.
    """

    http: Callable[[Any], Callable[[Any, str], Any]]
    grpc: Callable[[Any, str], Any]


class ServingProcess(Protocol):
    """A process that serves clients, as the part of an extension sees it."""

    @property
    def config(self) -> ConfigView:
        """The configuration at the start."""

    @property
    def number(self) -> int:
        """The number of the process among all that serve, from 1."""

    @property
    def count(self) -> int:
        """The number of all serving processes."""

    @property
    def setup(self) -> PartSetup | None:
        """What the leading process gave this extension; None where nothing leads."""

    @property
    def metrics(self) -> Any:
        """The metrics of the process; see `gateway.telemetry.metrics.Metrics`."""

    @property
    def new_path(self) -> Callable[..., Any]:
        """Makes the record of a call's path."""

    @property
    def shared(self) -> MutableMapping[str, Any]:
        """What several extensions use in this process, by names of their own choice."""

    def notify(self) -> None:
        """Let the leading part decide soon; see `LeadingPart.on_notice`."""


class ModelPlacement(Protocol):
    """What decides which models a server holds, for an upstream or the gateway itself."""

    def has(self, name: str, /) -> bool:
        """Return whether a server has the model."""

    def pin(self, name: str, /) -> None:
        """Load a model, and keep it."""

    def unpin(self, name: str, /) -> None:
        """Let a model be unloaded for others again."""

    async def evict(self, name: str, /) -> None:
        """Unload a model, when its running calls have ended."""

    async def document(self) -> list[dict[str, Any]]:
        """Return what each endpoint holds."""


class ModelLoader(ModelPlacement, Protocol):
    """Loads the models of the gateway when calls need them."""

    @property
    def name(self) -> str:
        """What the gateway is called among the upstreams."""

    def follow(self, models: Mapping[str, Any], /) -> None:
        """Have these models from now on, and begin to load those that are needed at once."""

    def is_loadable(self, name: str, /) -> bool:
        """Return whether calls of a model are possible, as far as is known."""

    async def close(self) -> None:
        """Load nothing more."""


class ServingPart:
    """An extension's part of a serving process. Its faults change no call.

    A subclass overrides what it needs.
    """

    @property
    def taps(self) -> Sequence[Tap]:
        """Receive the calls of all frontends."""
        return ()

    @property
    def on_call(self) -> CountCall | None:
        """Called with each inference or unread call of a client; None for nothing."""
        return None

    @property
    def client_access(self) -> Gatekeeper | None:
        """Knows who calls; None, as for all extensions but one."""
        return None

    def route_taps(self) -> Mapping[str, RouteTap]:
        """Return what receives chosen calls of routes, by the name of the route."""
        return {}

    def shifts(self, _config: ConfigView, /) -> Mapping[str, TrafficShift]:
        """Return the moved share of each route that has one, by the name of the route."""
        return {}

    def listener_parts(
        self, _config: ConfigView, _listener: str, _route_of: Callable[[Call[Any]], str], /
    ) -> Iterable[object]:
        """Return what the layers of a listener ask for by its class; see `LayerContext.part`."""
        return ()

    def reply_notes(self, _config: ConfigView, /) -> ReplyNotes | None:
        """Return what adds notes to the responses of all listeners; None for nothing."""
        return None

    def place(self, _placements: Mapping[str, ModelPlacement], /) -> None:
        """Receive what places models, by upstream; at the start, and when a reload changes it."""

    async def status(self) -> Mapping[str, Any]:
        """Return its documents in the status, by their keys."""
        return {}

    async def start(self) -> None:
        """Begin, before the gateway listens. Raises StartError."""

    def change(self, config: ConfigView, /) -> None:
        """Follow a reload."""

    def exchange(self, _document: Mapping[str, Any], /) -> Mapping[str, Any]:
        """Receive what the leading part sends, and return a reply, both as JSON values."""
        return {}

    async def stop(self) -> None:
        """Finish, after the last call; idempotent."""


class Processes(Protocol):
    """All processes of a gateway, as the part of an extension that leads sees them."""

    @property
    def config(self) -> ConfigView:
        """The configuration at the start."""

    @property
    def count(self) -> int:
        """The number of serving processes."""

    @property
    def shared(self) -> MutableMapping[str, Any]:
        """What several extensions use where they lead, by names of their own choice."""

    async def exchange(
        self, part: str, document: Mapping[str, Any], /, timeout_s: float = 1.0
    ) -> Reports:
        """Send a document to a part of every serving process, and return the replies.

        A part that did not reply in time gets nothing more until its process sends something.
        """


class LeadingPart:
    """An extension's part of the process that leads: the supervisor, or the only process.

    A subclass overrides what it needs.
    """

    @property
    def routes(self) -> Sequence[AdminRoute]:
        """Its routes of the admin port; read once, at the start."""
        return ()

    def moved(self, _config: ConfigView, /) -> Mapping[str, tuple[str, float]]:
        """Return the target that replaces the others, and its percentage of calls, by route."""
        return {}

    def events(self, _config: ConfigView, /) -> Mapping[str, Any]:
        """Return documents by the name of an event: listeners are told each that changes."""
        return {}

    def setup(self, _number: int, /) -> PartSetup:
        """Return what the serving process of a number begins with."""
        return PartSetup()

    def collect(self) -> Iterable[MetricFamily]:
        """Return the metrics of this part."""
        return ()

    def check_reload(self, config: ConfigView, /) -> None:
        """Check that a configuration may replace the one in force. Raises ConfigError."""

    async def change(self, config: ConfigView, /) -> None:
        """Follow a configuration that `check_reload` has accepted. Raises StartError."""

    def on_notice(self) -> None:
        """Decide soon: a serving process called `notify`."""

    def on_process_ended(self, metrics: Any, /) -> Any:
        """Return the last metrics of a serving process that died, corrected for what it lost."""
        return metrics

    async def start(self) -> None:
        """Begin, before the serving processes start. Raises StartError."""

    def lead(self) -> None:
        """Begin to decide: the serving processes have started."""

    async def stop(self) -> None:
        """End, after the serving processes; idempotent."""


class Extension:
    """A wing, found by entry points of the group `gateway.extensions`.

    It needs a `name`. What it leaves out has the defaults here.

    Attributes:
        name: Its name.
        settings: Its keys in the configuration file.
        metrics: Its metrics.
        commands: Its commands of `gateway`, each as "package.module:function".
        layers: The layers of an extension of the gateway itself, in the order of calls. A package
            has entry points of the group `gateway.layers`.
        recorded_calls: What tries a loaded model with recorded calls, as "package.module:function";
            "" for nothing.
    """

    name: str
    settings: tuple[Setting[Any], ...] = ()
    metrics: tuple[Metric, ...] = ()
    commands: Mapping[str, str] = MappingProxyType({})
    layers: tuple[Layer, ...] = ()
    recorded_calls: str = ""

    def check(self, _config: ConfigView, /) -> Iterator[Finding]:
        """Yield what is wrong with its keys, beyond their types."""
        return iter(())

    def warnings(self, _config: ConfigView, /) -> Iterator[Finding]:
        """Yield what is probably not meant; `gateway validate --strict` makes them errors."""
        return iter(())

    def check_file(self, _path: tuple[str | int, ...], _file: Path, /) -> None:
        """Check a file that the configuration names at a path of keys, if the extension reads it.

        Raises:
            OSError: It cannot be read.
            ValueError: Its content is wrong.
        """

    def client_names(self, _config: ConfigView, /) -> Iterable[str]:
        """Return the names of clients in its files; none where a file cannot be read here."""
        return ()

    def explain_access(
        self, _config: ConfigView, _example: ExampleCall, found: ExplainedAccess, /
    ) -> ExplainedAccess:
        """Return what is decided about a call, given what the extensions before it say.

        Raises:
            LookupError: The configuration has no such listener.
        """
        return found

    def apply_changes(self, config: ConfigView, _changes: Mapping[str, Any], /) -> ConfigView:
        """Return the configuration with changes that an operator made at run time.

        Raises:
            LookupError: A change names something that does not exist.
            ValueError: A change is invalid.
        """
        return config

    def model_loader(self, _config: ConfigView, /) -> Callable[[LayerContext], ModelLoader] | None:
        """Return what makes the loader of the gateway's models; None if the start loads them.

        It is called for each configuration, and `LayerContext.kept` has the loader before it.
        """
        return None

    def serve(self, _process: ServingProcess, /) -> ServingPart | None:
        """Return its part of a serving process; None if the configuration needs none."""
        return None

    def lead(self, _processes: Processes, /) -> LeadingPart | None:
        """Return its part of the leading process; None if the configuration needs none."""
        return None


def check_spelling(subject: str, own: object, expected: type) -> None:
    """Check that a part of a package names no member almost like one of its interface.

    Args:
        subject: What the error calls the part.
        own: The part.
        expected: The interface.

    Raises:
        LookupError: It does: probably the member is misspelt, and would have no effect.
    """
    members = _public(expected)
    for name in _public(own) - members:
        close = get_close_matches(name, members, n=1, cutoff=_ALMOST)
        if close:
            kind = expected.__name__
            raise LookupError(f"{subject} has {name!r}; expected {close[0]!r}, as a {kind} has")


def _public(part: object) -> set[str]:
    """Return the names of members; a helper of the part's own, such as `_check`, is none."""
    return {name for name in dir(part) if not name.startswith("_")}


def check_part(subject: str, own: object, expected: type) -> None:
    """Check that a part of a package has all members of its interface, and misspells none.

    Raises:
        LookupError: It does not.
    """
    check_spelling(subject, own, expected)
    for name in sorted(_public(expected)):
        if not hasattr(own, name):
            base = f"gateway.api.{expected.__name__}"
            raise LookupError(f"{subject} has no {name!r}; expected a class derived from {base}")


class CompletedExtension(Extension):
    """An extension of a package, with the defaults of what it leaves out.

    Args:
        own: Has a `name` and some of the other members.
    """

    def __init__(self, own: Any) -> None:
        self.name = own.name
        for member in _public(Extension):
            if hasattr(own, member):
                setattr(self, member, getattr(own, member))


_ALMOST: Final = 0.75  # of the letters
