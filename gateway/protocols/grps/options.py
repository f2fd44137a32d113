"""The options of grps that a listener or an upstream may set."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gateway.ir.context import ModelRef
from gateway.protocols.grps.custom.routes import CustomRoute, read_routes
from gateway.protocols.grps.custom.streaming import Streaming, read_streaming
from gateway.protocols.grps.messages import ContentFormat
from gateway.wire.heads.path_claims import PathClaim
from gateway.wire.options import (
    Reader,
    flag,
    mapping_of,
    member_of,
    model,
    one_of,
    read_values,
    text,
)

READY, LIVE = "ready", "live"
DEFAULT_DAG: Final = "default"
"""Model name for the default DAG of a grps server, which serves requests without a model."""

COMPRESSIONS: Final = ("none", "snappy", "gzip", "zlib")


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpsOptions:
    """The options, typed.

    Attributes:
        default_model: Listener: the model of a request that names none; "name" or "name/version".
        models: Listener: the model of a grps key; a key without an entry is the name of a model.
        switch: Listener: clients may set the server online and offline, which only changes the
            readiness that they see; otherwise a change is refused with 403.
        http_always_200: Listener: HTTP status 200 for every Status in the body, as the C++ server
            sends it.
        streaming: Both: how an HTTP request selects a stream.
        customized: Listener: additional routes with bodies of another form than grps's.
        keys: Upstream: the grps key of a model, by "name" or "name/version"; "" sends none, which
            means the server's default DAG.  Without an entry it is "name-version", or the name.
        readiness: Upstream: `ready` requests readiness, `live` liveness: a grps server starts
            offline, and may serve nevertheless.
        input_form: Upstream: the form of data sent to a model, by its name; "*" for all others.
            Without an entry it is the caller's form.
        output: Upstream: name of the tensor in a str_data or bin_data response; "" for the
            name of the form.
        widen: Upstream: send datatypes that grps lacks as wider ones.
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

    @property
    def changes_messages(self) -> bool:
        """Whether an option says how messages are written or read."""
        return bool(
            self.input_form
            or self.output
            or self.widen
            or self.http_always_200
            or self.streaming != Streaming()
        )

    def form_of(self, model: ModelRef | None) -> ContentFormat | None:
        """Return the form of data sent to *model*; None for that of the caller."""
        if not self.input_form:
            return None
        name = "" if model is None else model.name
        return self.input_form.get(name) or self.input_form.get("*")


def check_options(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return *options* unchanged.

    Raises:
        ValueError: A key does not exist, or a value is wrong.
    """
    read_options(options)
    return options


def read_options(options: Mapping[str, Any]) -> GrpsOptions:
    """Return *options*, typed.

    Raises:
        ValueError: A key does not exist, or a value is wrong.
    """
    return GrpsOptions(**read_values("grps", _READERS, options))


def custom_claims(options: Mapping[str, Any]) -> tuple[PathClaim, ...]:
    """Return the paths of customised routes, which a listener mounts in addition to the protocol's.

    Raises:
        ValueError: A key does not exist, or a value is wrong.
    """
    routes = read_options(options).customized
    return tuple([PathClaim(route.path, option="customized") for route in routes])


def _forms(key: str, value: Any) -> Mapping[str, ContentFormat]:
    read = member_of(ContentFormat)
    if isinstance(value, str):
        return {"*": read(key, value)}
    forms: Mapping[str, ContentFormat] = mapping_of(read)(key, value)
    return forms


_READERS: Final[Mapping[str, Reader]] = {
    "default_model": model,
    "models": mapping_of(model),
    "switch": flag,
    "http_always_200": flag,
    "streaming": read_streaming,
    "customized": read_routes,
    "keys": mapping_of(text),
    "readiness": one_of(READY, LIVE),
    "input_form": _forms,
    "output": text,
    "widen": flag,
    "compress": one_of(*COMPRESSIONS),
}
