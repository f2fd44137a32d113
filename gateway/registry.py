"""Finds protocols, backends and extensions: built in, entry points, then dotted names.

Modules are imported on first use, so a configuration does not load protocols that it does not name.
"""

import dataclasses
import functools
import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import entry_points
from typing import Any, Final, Protocol, cast, get_args

from gateway.api.access import Authenticator
from gateway.api.authoriser import Authoriser
from gateway.api.comparison import ComparisonRule
from gateway.api.events import EventSink
from gateway.api.extension import CompletedExtension, Extension, check_spelling
from gateway.api.layer import Calls, Chain, Layer, Reads
from gateway.api.platform import Platform
from gateway.api.protocol import GrpcBinding, HttpBinding, ProtocolSpec, StreamBinding
from gateway.api.transform import TensorTransform
from gateway.ir.errors import GatewayError
from gateway.settings.config_view import ConfigView, Finding
from gateway.settings.setting import Place, Setting
from gateway.settings.units import Url
from gateway.telemetry.faults import FAULTS

PROTOCOLS: dict[str, str] = {
    "graphpipe": "gateway.protocols.graphpipe:SPEC",
    "grps": "gateway.protocols.grps:SPEC",
    "mlflow": "gateway.protocols.mlflow:SPEC",
    "oip": "gateway.protocols.oip:SPEC",
    "openai": "gateway.protocols.openai:SPEC",
    "seldon": "gateway.protocols.seldon:SPEC",
    "tfs": "gateway.protocols.tfs:SPEC",
    "torchserve": "gateway.protocols.torchserve:SPEC",
    "trtis": "gateway.protocols.trtis:SPEC",
}

_EXTENSIONS_GROUP: Final = "gateway.extensions"
_PROTOCOLS_GROUP: Final = "gateway.protocols"
_LAYERS_GROUP: Final = "gateway.layers"
_EVENT_SINKS_GROUP: Final = "gateway.event_sinks"

BACKENDS: dict[str, str] = {
    "onnx": "gateway.backends.repository:from_spec",
    "python": "gateway.backends.python:from_spec",
    "torch": "gateway.backends.torch:from_spec",
}

EXTENSIONS: dict[str, str] = {
    "access": "gateway.access.extension:EXTENSION",
    "residency": "gateway.residency.extension:EXTENSION",
    "quotas": "gateway.quotas.extension:EXTENSION",
    "shadow": "gateway.shadow.extension:EXTENSION",
    "events": "gateway.events.extension:EXTENSION",
    "migration": "gateway.migration:EXTENSION",
    "conformance": "gateway.conformance.extension:EXTENSION",
}


@functools.cache
def extensions() -> Mapping[str, Extension]:
    """Return all extensions by name: those of the gateway, then those of installed packages."""
    return {**_of_packages(_EXTENSIONS_GROUP, _completed).found, **_own_extensions()}


@functools.cache
def _own_extensions() -> Mapping[str, Extension]:
    return {name: load_dotted(dotted) for name, dotted in EXTENSIONS.items()}


def extension_layers(chain: Chain) -> tuple[Layer, ...]:
    """Return the layers that extensions of the gateway itself have in a chain, in their order."""
    found = (layer for extension in _own_extensions().values() for layer in extension.layers)
    return tuple(layer for layer in found if layer.chain == chain)


def _completed(name: str, found: Any) -> Extension:
    if isinstance(found, type) and hasattr(found, "name"):
        found = found()
    if not isinstance(getattr(found, "name", None), str):
        kind = type(found).__name__
        message = f"extension {name!r} is a {kind}; expected a gateway.api.Extension"
        raise LookupError(message)  # noqa: TRY004  # the object is wrong, not an argument
    check_spelling(f"extension {name!r}", found, Extension)
    if getattr(found, "layers", ()):
        raise LookupError(
            f"extension {name!r} has layers; expected an entry point of {_LAYERS_GROUP!r} for each"
        )
    completed = found if isinstance(found, Extension) else CompletedExtension(found)
    _check_places(f"extension {name!r}", completed.settings)
    return completed


@dataclasses.dataclass(frozen=True, slots=True)
class _OfPackages:
    """The parts of a group of entry points, by name, and what is wrong with the others."""

    found: Mapping[str, Any]
    faults: tuple[str, ...]


@functools.cache
def _of_packages(group: str, check: Callable[[str, Any], Any]) -> _OfPackages:
    """Import the parts of a group; *check* returns a part, or raises LookupError."""
    found: dict[str, Any] = {}
    faults = []
    for entry in entry_points(group=group):
        try:
            found.setdefault(entry.name, check(entry.name, load_dotted(entry.value)))
        except FAULTS as error:
            package = "" if entry.dist is None else f"package {entry.dist.name!r}: "
            faults.append(f"{package}{_reason(error)}")
    return _OfPackages(found, tuple(faults))


def _reason(error: BaseException) -> str:
    return str(error) if isinstance(error, LookupError) else f"{type(error).__name__}: {error}"


def package_faults() -> tuple[str, ...]:
    """Return why parts of installed packages cannot be used; the command line works without them.

    Parts that only a configuration names are checked where it names them.
    """
    faults = (
        *extension_faults(),
        *_of_packages(_LAYERS_GROUP, _checked_layer).faults,
        *_of_packages(_PROTOCOLS_GROUP, _checked_protocol).faults,
        *_settings()[1],
    )
    return tuple(dict.fromkeys(faults))


def extension_faults() -> tuple[str, ...]:
    """Return why extensions of installed packages cannot be used, as `package_faults` does."""
    return _of_packages(_EXTENSIONS_GROUP, _completed).faults


@functools.cache
def protocol_names() -> tuple[str, ...]:
    """Return the names of all protocols: those of the gateway, then those of installed packages."""
    return tuple(dict.fromkeys((*PROTOCOLS, *_entry_names(_PROTOCOLS_GROUP))))


def layers() -> Mapping[str, Layer]:
    """Return the layers of installed packages, by the names of their entry points."""
    return _of_packages(_LAYERS_GROUP, _checked_layer).found


def _checked_layer(name: str, layer: Any) -> Layer:
    if not isinstance(layer, Layer):
        message = f"layer {name!r} is a {type(layer).__name__}; expected a gateway.api.Layer"
        raise LookupError(message)  # noqa: TRY004  # the object is wrong, not an argument
    for member, found, expected in (
        ("chain", layer.chain, get_args(Chain)),
        ("calls", layer.calls, tuple(Calls)),
        ("needs", layer.needs, tuple(Reads)),
    ):
        if found not in expected:
            names = ", ".join(map(str, expected))
            raise LookupError(f"layer {name!r} has the {member} {found!r}; expected one of {names}")
    _check_places(f"layer {name!r}", layer.settings)
    return layer


def _check_places(owner: str, own: Iterable[Setting[Any]]) -> None:
    """Check that keys belong to places of the file.

    Raises:
        LookupError: One does not.
    """
    places = get_args(Place)
    for each in own:
        for place in each.places:
            if place not in places:
                raise LookupError(
                    f"{owner} has the key {each.key!r} in the place {place!r}; expected one of "
                    f"{', '.join(places)}"
                )


class KeyOwner(Protocol):
    """A layer, or the end of a chain, with keys of the configuration file."""

    @property
    def name(self) -> str:
        """The name of its class."""

    @property
    def settings(self) -> tuple[Setting[Any], ...]:
        """Its keys."""

    @property
    def check(self) -> Callable[[ConfigView], Iterator[Finding]]:
        """What yields the wrong values of its keys, beyond their types."""


def own_layers() -> Iterator[KeyOwner]:
    """Yield the layers of the gateway and the ends of their chains, which may have keys."""
    yield from load_dotted("gateway.app.layers:own_layers")()


def settings() -> tuple[Setting[Any], ...]:
    """Return the keys of the configuration file that extensions and layers own."""
    return _settings()[0]


@functools.cache
def _settings() -> tuple[tuple[Setting[Any], ...], tuple[str, ...]]:
    """Return the keys, and what is wrong with others that two have."""
    owners = [(f"extension {name!r}", each.settings) for name, each in extensions().items()]
    owners += [(_owner_text(each), each.settings) for each in own_layers()]
    owners += [(f"layer {name!r}", each.settings) for name, each in layers().items()]
    found: dict[tuple[str, str], tuple[str, Setting[Any]]] = {}
    faults = []
    for owner, own in owners:
        for setting in own:
            for place in setting.places:
                other, same = found.setdefault((place, setting.key), (owner, setting))
                if same is not setting:
                    faults.append(_same_key(setting.key, place, owner, other))
    own_keys = dict.fromkeys(setting for _, setting in found.values())
    return tuple(own_keys), tuple(faults)


def _same_key(key: str, place: str, owner: str, other: str) -> str:
    """Return what is wrong with a key that two owners have; it belongs to *other*."""
    if other in {_owner_text(each) for each in own_layers()}:
        return (
            f"an installed package has the key {key!r} of {place!r}, which the gateway has too; "
            "expected another key"
        )
    return (
        f"{owner} has the key {key!r} in {place!r}, which belongs to {other}; expected another key"
    )


def _owner_text(layer: KeyOwner) -> str:
    return f"layer {layer.name!r}"


def transform(name: str, /) -> TensorTransform:
    """Return the transform *name*, made anew if it is a class.

    Raises:
        LookupError: It does not exist, or cannot be imported.
    """
    return cast("TensorTransform", _made("transform", name, "gateway.transforms"))


def recorded_calls() -> Any:
    """Return what tries a loaded model with recorded calls; see `routing.rolling.settings.Trial`.

    Raises:
        LookupError: No extension has one, or it cannot be imported.
    """
    for extension in extensions().values():
        if extension.recorded_calls:
            return load_dotted(extension.recorded_calls)
    raise LookupError("no extension sends recorded calls; expected the migration kit")


def authenticator(name: str, /) -> Authenticator:
    """Return the authenticator *name*, made anew if it is a class.

    Raises:
        LookupError: It does not exist, or cannot be imported.
    """
    return cast("Authenticator", _made("authenticator", name, "gateway.authenticators"))


def authoriser(name: str, /) -> Authoriser:
    """Return the authoriser *name*, made anew if it is a class.

    Raises:
        LookupError: It does not exist, or cannot be imported.
    """
    return cast("Authoriser", _made("authoriser", name, "gateway.authorisers"))


def comparison_rule(name: str, /) -> ComparisonRule:
    """Return the comparison rule *name*, made anew if it is a class.

    Raises:
        LookupError: It does not exist, or cannot be imported.
    """
    return cast("ComparisonRule", _made("comparison rule", name, "gateway.comparison_rules"))


def event_sink_names() -> tuple[str, ...]:
    """Return the schemes of URLs of events that sinks of installed packages are for."""
    return tuple(_entry_names(_EVENT_SINKS_GROUP))


def event_sink(scheme: str, /) -> Callable[[str], EventSink]:
    """Return what makes the sink of a package for URLs of a scheme, of the URL.

    Raises:
        LookupError: It does not exist, or cannot be imported.
    """
    return cast("Callable[[str], EventSink]", _find("event sink", scheme, {}, _EVENT_SINKS_GROUP))


def protocol(name: str, /) -> ProtocolSpec:
    """Return the protocol *name*.

    Raises:
        LookupError: It does not exist, and the text lists those that do; or it cannot be imported.
    """
    spec = _find("protocol", name, PROTOCOLS, _PROTOCOLS_GROUP)
    if not isinstance(spec, ProtocolSpec):
        message = f"{name!r} is a {type(spec).__name__}; expected a ProtocolSpec"
        raise LookupError(message)  # noqa: TRY004  # the object is wrong, not an argument
    if ":" not in name and spec.name != name:
        raise LookupError(
            f"the entry point {name!r} is the protocol {spec.name!r}; expected equal names"
        )
    return spec if name in PROTOCOLS else _guarded(spec)


def _guarded(spec: ProtocolSpec) -> ProtocolSpec:
    """Return a protocol of a package whose codecs raise nothing that ends the process."""
    bindings = {
        carrier: dataclasses.replace(binding, codec=_guarding(spec.name, binding.codec))
        for carrier in ("http", "grpc", "stream")
        if (binding := getattr(spec, carrier)) is not None
    }
    return dataclasses.replace(spec, **bindings)


def _guarding(protocol_name: str, make: Callable[..., Any]) -> Callable[..., Any]:
    """Return what makes the same codec, whose methods name the protocol in their faults."""

    def guarded_codec(*arguments: Any) -> Any:
        codec = make(*arguments)
        kind = type(codec)
        methods = {
            name: _guarded_method(protocol_name, method)
            for name in dir(kind)
            if not name.startswith("_") and inspect.isfunction(method := getattr(kind, name))
        }
        guarded = type(kind.__name__, (kind,), {"__slots__": (), **methods})
        object.__setattr__(codec, "__class__", guarded)  # of a frozen one, too
        return codec

    return guarded_codec


def _guarded_method(protocol_name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def guarded(*arguments: Any, **options: Any) -> Any:
        try:
            return method(*arguments, **options)
        except GatewayError:
            raise
        except Exception as error:
            error.add_note(f"protocol {protocol_name!r}")
            raise
        except BaseException as error:  # it would end the process
            fault = RuntimeError(f"raised {type(error).__name__}: {error}")
            fault.add_note(f"protocol {protocol_name!r}")
            raise fault from error

    return guarded


def _checked_protocol(name: str, _spec: Any) -> ProtocolSpec:
    return protocol(name)


def platforms(names: Iterable[str], /) -> tuple[Platform, ...]:
    """Return the platforms whose containers speak the protocols *names*.

    Raises:
        LookupError: A protocol cannot be imported.
    """
    found = [protocol(name).platform for name in names]
    return tuple([each for each in found if each is not None])


def carrier_of(url: Url, /) -> HttpBinding | GrpcBinding | StreamBinding:
    """Return how the protocol of an upstream's URL uses its carrier.

    Raises:
        LookupError: The protocol does not exist, or does not support the carrier.
        ValueError: The URL has a path that is of no use.
    """
    spec = protocol(url.protocol)
    found = spec.carriers.get(url.carrier)
    if found is None:
        carriers = ", ".join(spec.carriers)
        raise LookupError(
            f"protocol {url.protocol!r} does not support {url.carrier!r}; expected {carriers}"
        )
    if url.path:
        _check_path(url, found)
    return found


def _check_path(url: Url, binding: HttpBinding | GrpcBinding | StreamBinding) -> None:
    if isinstance(binding, HttpBinding):
        paths = [each.path for each in binding.all_claims({}) if not each.is_base]
        own = next((each for each in paths if f"{each}/" in f"{url.path}/"), None)
        if binding.path_option or own is None:
            return
        base = url.path[: f"{url.path}/".index(f"{own}/")]
        why = f"the gateway adds {own!r} and what follows itself"
    else:
        base, why = "", f"{url.carrier!r} has no paths"
    raise ValueError(
        f"{str(url)!r} has the path {url.path!r}, but {why}; expected "
        f"{str(dataclasses.replace(url, path=base))!r}"
    )


def backend(name: str, /) -> Any:
    """Return what makes models of the backend *name* from a `ModelSpec`; see `backends.hosted`.

    Raises:
        LookupError: It does not exist or cannot be imported.
    """
    return _find("backend", name, BACKENDS, "gateway.backends")


def _made(kind: str, name: str, group: str) -> Any:
    """Return a part of an installed package, made anew if it is a class."""
    found = _find(kind, name, {}, group)
    return found() if isinstance(found, type) else found


def _find(kind: str, name: str, table: dict[str, str], group: str) -> Any:
    dotted = table.get(name)
    if dotted is not None:
        return load_dotted(dotted)
    for entry in entry_points(group=group, name=name):
        return load_dotted(entry.value)
    if ":" in name:
        return load_dotted(name)
    names = sorted({*table, *_entry_names(group)})
    if not names:
        raise LookupError(f"unknown {kind} {name!r}; no installed package has one")
    raise LookupError(f"unknown {kind} {name!r}; expected one of {', '.join(names)}")


def _entry_names(group: str) -> list[str]:
    return [entry.name for entry in entry_points(group=group)]


def load_dotted(dotted: str) -> Any:
    """Import `package.module:attribute` and return the attribute.

    Raises:
        LookupError: The module cannot be imported, or does not have the attribute.
    """
    module_name, _, attribute = dotted.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise LookupError(f"cannot import {module_name!r}: {error}") from error
    except FAULTS as error:  # code of a package runs
        reason = f"{type(error).__name__}: {error}"
        raise LookupError(f"cannot import {module_name!r}: {reason}") from error
    found: Any = module
    try:
        for name in attribute.split("."):
            found = getattr(found, name)
    except AttributeError as error:
        raise LookupError(f"module {module_name!r} has no {attribute!r}") from error
    return found
