"""Finds protocols, backends and extensions: built in, entry points, then dotted names.

Modules are imported on first use, so a configuration does not load protocols that it does not name.
"""

import dataclasses
import functools
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import entry_points
from typing import Any, Final, Protocol, cast

from gateway.api.access import Authenticator
from gateway.api.authoriser import Authoriser
from gateway.api.comparison import ComparisonRule
from gateway.api.events import EventSink
from gateway.api.extension import CompletedExtension, ConfigView, Extension, Finding
from gateway.api.layer import Layer
from gateway.api.platform import Platform
from gateway.api.protocol import GrpcBinding, HttpBinding, ProtocolSpec, StreamBinding
from gateway.api.transform import TensorTransform
from gateway.settings.setting import Setting
from gateway.settings.units import UNIX, Url

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

_PROTOCOLS_GROUP: Final = "gateway.protocols"
_LAYERS_GROUP: Final = "gateway.layers"
_EVENT_SINKS_GROUP: Final = "gateway.event_sinks"

BACKENDS: dict[str, str] = {
    "onnx": "gateway.backends.repository:from_spec",
    "python": "gateway.backends.python:from_spec",
    "torch": "gateway.backends.torch:from_spec",
}

EXTENSIONS: dict[str, str] = {
    "migration": "gateway.migration:EXTENSION",
}


@functools.cache
def extensions() -> Mapping[str, Extension]:
    """Return all extensions by name: those of the gateway, then those of installed packages.

    Raises:
        LookupError: One cannot be imported, or is no extension.
    """
    found = {name: load_dotted(dotted) for name, dotted in EXTENSIONS.items()}
    for entry in entry_points(group="gateway.extensions"):
        found.setdefault(entry.name, load_dotted(entry.value))
    return {name: _completed(name, extension) for name, extension in found.items()}


def _completed(name: str, found: Any) -> Extension:
    if isinstance(found, type) and hasattr(found, "name"):
        found = found()
    if isinstance(found, Extension):
        return found
    if not isinstance(getattr(found, "name", None), str):
        kind = type(found).__name__
        message = f"extension {name!r} is a {kind}; expected a gateway.api.Extension"
        raise LookupError(message)  # noqa: TRY004  # the object is wrong, not an argument
    return CompletedExtension(found)


@functools.cache
def protocol_names() -> tuple[str, ...]:
    """Return the names of all protocols: those of the gateway, then those of installed packages."""
    return tuple(dict.fromkeys((*PROTOCOLS, *_entry_names(_PROTOCOLS_GROUP))))


@functools.cache
def layers() -> Mapping[str, Layer]:
    """Return the layers of installed packages, by the names of their entry points.

    Raises:
        LookupError: One cannot be imported, or is no layer.
    """
    found = {entry.name: load_dotted(entry.value) for entry in entry_points(group=_LAYERS_GROUP)}
    for name, layer in found.items():
        if not isinstance(layer, Layer):
            kind = type(layer).__name__
            message = f"layer {name!r} is a {kind}; expected a gateway.api.Layer"
            raise LookupError(message)  # noqa: TRY004  # the object is wrong, not an argument
    return found


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


@functools.cache
def settings() -> tuple[Setting[Any], ...]:
    """Return the keys of the configuration file that extensions and layers own.

    Raises:
        LookupError: An extension or a layer cannot be imported, or two have the same key.
    """
    owners = [(f"extension {name!r}", each.settings) for name, each in extensions().items()]
    owners += [(_owner_text(each), each.settings) for each in own_layers()]
    owners += [(f"layer {name!r}", each.settings) for name, each in layers().items()]
    found: dict[tuple[str, str], tuple[str, Setting[Any]]] = {}
    for owner, own in owners:
        for setting in own:
            for place in setting.places:
                other, same = found.setdefault((place, setting.key), (owner, setting))
                if same is not setting:
                    raise LookupError(_same_key(setting.key, place, owner, other))
    return tuple(dict.fromkeys(setting for _, setting in found.values()))


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
        dotted: str | None = getattr(extension, "recorded_calls", None)
        if dotted is not None:
            return load_dotted(dotted)
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
    return spec


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
    if url.path and url.carrier != UNIX:
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
        return getattr(importlib.import_module(module_name), attribute)
    except ImportError as error:
        raise LookupError(f"cannot import {module_name!r}: {error}") from error
    except AttributeError as error:
        raise LookupError(f"module {module_name!r} has no {attribute!r}") from error
