"""grps's options: what a listener or an upstream may set, each checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gateway.ir.context import ModelRef
from gateway.protocols.grps.custom.routes import CustomRoute, read_routes
from gateway.protocols.grps.custom.streaming import Streaming, read_streaming
from gateway.protocols.grps.messages import ContentFormat

READY, LIVE = "ready", "live"
# A file's scalars are text.
_FLAGS: Final = {"true": True, "false": False}
COMPRESSIONS: Final = ("none", "snappy", "gzip", "zlib")


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpsOptions:
    """The options, typed.

    Attributes:
        default_model: Listener: the model of a request that names none; "name" or "name/version".
        models: Listener: what a grps key stands for; a key that is not here is a model's name.
        switch: Listener: its clients may set the server online and offline, which is all that its
            readiness is to them; without it they are told 403 unless nothing would change.
        http_always_200: Listener: HTTP status 200 whatever the Status in the body says (as the
            C++ server).
        streaming: Both: what makes an HTTP request ask for a stream.
        customized: Listener: routes of their own whose bodies are not grps's.
        keys: Upstream: the grps key of a model, by "name" or "name/version"; "" sends none, which
            means the server's default DAG.  Without an entry it is "name-version", or the name.
        readiness: Upstream: `ready` asks for readiness, `live` for liveness: a grps server starts
            offline and may serve perfectly well.
        input_form: Upstream: the form of data sent to a model, by its name; "*" for all others.
            Without one it is the form in which the caller sent it.
        output: Upstream: what the tensor of a str_data or bin_data answer is called; "" for the
            name of the form.
        widen: Upstream: send datatypes that grps lacks as the next wider ones.
        compress: Upstream over brpc: how messages are compressed.
    """

    default_model: ModelRef | None = None
    models: Mapping[str, ModelRef] = field(default_factory=dict)
    switch: bool = False
    http_always_200: bool = False
    streaming: Streaming = field(default_factory=Streaming)
    customized: tuple[CustomRoute, ...] = ()
    keys: Mapping[str, str] = field(default_factory=dict)
    readiness: str = READY
    input_form: Mapping[str, ContentFormat] = field(default_factory=dict)
    output: str = ""
    widen: bool = False
    compress: str = "none"

    def form_of(self, model: ModelRef | None) -> ContentFormat | None:
        """Return the form in which data goes to *model*; None for that of the caller."""
        if not self.input_form:
            return None
        name = "" if model is None else model.name
        return self.input_form.get(name) or self.input_form.get("*")


def check_options(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return *options* unchanged.

    Raises:
        ValueError: A key or value is not one of ours.
    """
    settings_of(options)
    return options


def settings_of(options: Mapping[str, Any]) -> GrpsOptions:
    """Return *options* as settings.

    Raises:
        ValueError: A key or value is not one of ours.
    """
    for key in options:
        if key not in _READERS:
            raise ValueError(f"grps has no option {key!r}, only {', '.join(_READERS)}")
    return GrpsOptions(**{key: _READERS[key](key, value) for key, value in options.items()})


def custom_paths(options: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the paths of customised routes, which a listener must mount besides the protocol's.

    Raises:
        ValueError: A key or value is not one of ours.
    """
    return tuple([route.path for route in settings_of(options).customized])


def _model(key: str, value: Any) -> ModelRef:
    name, _, version = _text(key, value).partition("/")
    if not name:
        raise ValueError(f"{key} {value!r} names no model")
    return ModelRef(name, version)


def _text(key: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{key} is {value!r}, needed is text")  # noqa: TRY004  # of the options
    return value


def _flag(key: str, value: Any) -> bool:
    found = _FLAGS.get(value) if isinstance(value, str) else value
    if not isinstance(found, bool):
        raise ValueError(f"{key} is {value!r}, needed is true or false")  # noqa: TRY004
    return found


def _one_of(*known: str) -> Callable[[str, Any], str]:
    def read(key: str, value: Any) -> str:
        if value not in known:
            raise ValueError(f"{key} {value!r} is none of {', '.join(known)}")
        return str(value)

    return read


def _mapping(key: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise ValueError(f"{key} is {value!r}, needed is a mapping from names")
    return value


def _models(key: str, value: Any) -> Mapping[str, ModelRef]:
    entries = _mapping(key, value)
    return {name: _model(f"{key}.{name}", target) for name, target in entries.items()}


def _keys(key: str, value: Any) -> Mapping[str, str]:
    entries = _mapping(key, value)
    return {name: _text(f"{key}.{name}", target) for name, target in entries.items()}


def _form(key: str, value: Any) -> ContentFormat:
    try:
        return ContentFormat(value)
    except ValueError:
        known = ", ".join(form.value for form in ContentFormat)
        raise ValueError(f"{key} {value!r} is none of {known}") from None


def _forms(key: str, value: Any) -> Mapping[str, ContentFormat]:
    if isinstance(value, str):
        return {"*": _form(key, value)}
    entries = _mapping(key, value)
    return {name: _form(f"{key}.{name}", form) for name, form in entries.items()}


_READERS: Final[dict[str, Callable[[str, Any], Any]]] = {
    "default_model": _model,
    "models": _models,
    "switch": _flag,
    "http_always_200": _flag,
    "streaming": read_streaming,
    "customized": read_routes,
    "keys": _keys,
    "readiness": _one_of(READY, LIVE),
    "input_form": _forms,
    "output": _text,
    "widen": _flag,
    "compress": _one_of(*COMPRESSIONS),
}
