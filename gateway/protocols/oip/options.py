"""The options of Open Inference that a listener or an upstream may set.

A listener serves inference, health and metadata.  All other calls are off until an option enables
them.  A call that is off is refused as by a server without it, and the server's metadata does not
list its extension.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from gateway.api.protocol import Options
from gateway.wire.options import Reader, flag, one_of, read_values, wrong

DIALECT_NAMES = ("auto", "triton", "mlserver", "kserve", "ovms", "gateway")
UNKNOWN = "unknown"
"""The dialect of a server whose name is not known: as Triton's, but without its promises."""

OFF, GATEWAY, TARGET = "off", "gateway", "target"
READ = "read"
"""Value of an option that allows reading the targets' settings, and no changes."""
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
        trace: Clients may read and change the targets' trace settings; with "read", only read.
        opaque: Paths that are not modelled are passed on to servers of the same protocol.
        logging: "off"; "gateway": the gateway's own log settings; "target": the upstreams'; "read":
            the upstreams', without changes.
    """

    model_configuration: bool = False
    statistics: str = OFF
    repository_index: bool = False
    model_control: bool = False
    model_config: bool | str = False
    model_files: bool = False
    trace: bool | str = False
    logging: str = OFF
    opaque: bool = False


def _flag_or(word: str) -> Reader:
    """Return a reader of true, false or *word*."""

    def read(key: str, value: Any) -> bool | str:
        if value != word and str(value).lower() not in ("true", "false"):
            raise wrong(key, value, f"true, false or {word}")
        return word if value == word else flag(key, value)

    return read


def _nonfinite(key: str, value: Any) -> str:
    # YAML's null is the word that the option means.
    found: str = _NONFINITE(key, "null" if value is None else value)
    return found


_NONFINITE = one_of("refuse", "literal", "null")
_READERS: Mapping[str, Reader] = {
    "dialect": one_of(*DIALECT_NAMES, UNKNOWN),
    "not_ready_status": one_of(503, 409),
    "nonfinite": _nonfinite,
    "model_configuration": flag,
    "statistics": one_of(OFF, GATEWAY, TARGET),
    "repository_index": flag,
    "model_control": flag,
    "model_config": _flag_or(LIMITED),
    "model_files": flag,
    "trace": _flag_or(READ),
    "logging": one_of(OFF, GATEWAY, TARGET, READ),
    "opaque": flag,
    "sagemaker": flag,
}
_EXTENSIONS = tuple(field.name for field in fields(Extensions))
_WHOSE = ("statistics", "logging")


def check_options(options: Options) -> Options:
    """Return *options*, each value in its type.

    Raises:
        ValueError: A key does not exist, or a value is wrong.
    """
    return read_values("oip", _READERS, options)


def read_extensions(options: Options) -> Extensions:
    """Return the extensions that a listener's *options* enable."""
    return Extensions(**{key: options[key] for key in _EXTENSIONS if key in options})


def extension_status(options: Options) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the extensions that *options* enable, as `--enable` has them, and those that are off.

    Raises:
        ValueError: An option is wrong.
    """
    extensions = read_extensions(check_options(options))
    on: list[str] = []
    off: list[str] = []
    for name in _EXTENSIONS:
        value = getattr(extensions, name)
        if value in (False, OFF):
            off.append(name)
        else:
            on.append(name if value is True else f"{name}={value}")
    return tuple(on), tuple(off)


def how_to_enable(option: str) -> str:
    """Return the flag and the YAML that enable *option*, for errors."""
    value = TARGET if option in _WHOSE else "true"
    argument = f"{option}={value}" if option in _WHOSE else option
    return f"--enable {argument}, or options: {{oip: {{{option}: {value}}}}} of the listener"
