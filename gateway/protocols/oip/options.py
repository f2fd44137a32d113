"""The options of Open Inference that a listener or an upstream may set.

A listener serves inference, health and metadata.  All other calls are off until an option enables
them.  A call that is off is refused as by a server without it, and the server's metadata does not
list its extension.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from gateway.wire.codec import Options
from gateway.wire.options import Reader, flag, one_of, read_values, wrong

DIALECT_NAMES = ("auto", "triton", "mlserver", "kserve", "ovms", "gateway")

OFF, GATEWAY, TARGET = "off", "gateway", "target"
LIMITED = "limited"


@dataclass(frozen=True, slots=True, kw_only=True)
class Extensions:
    """The calls that a listener serves besides inference, health and metadata.

    Attributes:
        model_configuration: Clients may read a model's configuration.
        statistics: "off"; "gateway": the counts of the gateway; "target": those of the model's
            target, or of the gateway where the target has none.
        repository_index: Clients may read the index of models, with versions and states.
        model_control: Clients may load and unload models by name.
        model_config: A request to load may bring the model's configuration along: any, or with
            "limited" the fields of limited_config.py. Any configuration is as strong as
            model_files: it makes Triton run commands of the client on its machine.
        model_files: A request to load may contain the model's files, which are programs that the
            server runs.
        trace: Clients may read and change the targets' trace settings.
        opaque: Paths that are not modelled are passed on to servers of the same protocol.
        logging: "off"; "gateway": the gateway's own log settings; "target": the upstreams'.
    """

    model_configuration: bool = False
    statistics: str = OFF
    repository_index: bool = False
    model_control: bool = False
    model_config: bool | str = False
    model_files: bool = False
    trace: bool = False
    logging: str = OFF
    opaque: bool = False


def _flag_or_limited(key: str, value: Any) -> bool | str:
    if value != LIMITED and str(value).lower() not in ("true", "false"):
        raise wrong(key, value, f"true, false or {LIMITED}")
    return LIMITED if value == LIMITED else flag(key, value)


_WHOSE = one_of(OFF, GATEWAY, TARGET)
_READERS: Mapping[str, Reader] = {
    "dialect": one_of(*DIALECT_NAMES),
    "not_ready_status": one_of(503, 409),
    "model_configuration": flag,
    "statistics": _WHOSE,
    "repository_index": flag,
    "model_control": flag,
    "model_config": _flag_or_limited,
    "model_files": flag,
    "trace": flag,
    "logging": _WHOSE,
    "opaque": flag,
}
_EXTENSIONS = tuple(field.name for field in fields(Extensions))


def check_options(options: Options) -> Options:
    """Return *options*, each value in its type.

    Raises:
        ValueError: A key does not exist, or a value is wrong.
    """
    return read_values("oip", _READERS, options)


def read_extensions(options: Options) -> Extensions:
    """Return the extensions that a listener's *options* enable."""
    return Extensions(**{key: options[key] for key in _EXTENSIONS if key in options})
