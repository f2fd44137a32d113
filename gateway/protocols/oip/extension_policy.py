"""Refuses calls that the options of a listener do not enable, or that no upstream supports.

A call that is off is refused as by a server without it: 501 and UNIMPLEMENTED.  The listener's own
option `shared_memory` controls shared memory, outside of the codecs.

Source: docs/protocols/open-inference.md, "14. Models, statistics and settings" and
"17. Dialects of upstream servers".
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from gateway.ir.calls import (
    Call,
    LogSettingsRequest,
    ModelConfigRequest,
    ModelLoadRequest,
    ModelStatisticsRequest,
    ModelUnloadRequest,
    RepositoryIndexRequest,
    SharedRegisterRequest,
    SharedStatusRequest,
    SharedUnregisterRequest,
    TraceSettingRequest,
    words_of,
)
from gateway.ir.errors import Unsupported
from gateway.ir.limits import DEFAULT_LIMITS, MessageLimits, check_folder_name
from gateway.ir.metadata import ServerMetadata
from gateway.ir.tensors.tensor import RequestedOutput
from gateway.protocols.oip.control import CONFIG, FILE
from gateway.protocols.oip.limited_config import limited_config
from gateway.protocols.oip.options import (
    GATEWAY,
    LIMITED,
    OFF,
    READ,
    Extensions,
    how_to_enable,
)

# The option of each call that is off by default, and its name in errors.
_GATES: Mapping[type[Call[Any]], tuple[str, str]] = {
    ModelConfigRequest: ("model_configuration", "model configuration"),
    ModelStatisticsRequest: ("statistics", "statistics of models"),
    RepositoryIndexRequest: ("repository_index", "the index of models"),
    ModelLoadRequest: ("model_control", "loading and unloading of models"),
    ModelUnloadRequest: ("model_control", "loading and unloading of models"),
    TraceSettingRequest: ("trace", "trace settings"),
    LogSettingsRequest: ("logging", "log settings"),
}

# Triton's name of an extension, where all of its options are on.
_ADVERTISED: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("model_repository", ("repository_index", "model_control")),
    ("model_repository(unload_dependents)", ("repository_index", "model_control")),
    ("model_configuration", ("model_configuration",)),
    ("statistics", ("statistics",)),
    ("trace", ("trace",)),
    ("logging", ("logging",)),
)

_TRITONS = frozenset(
    {
        ModelConfigRequest,
        ModelStatisticsRequest,
        TraceSettingRequest,
        LogSettingsRequest,
        SharedRegisterRequest,
        SharedUnregisterRequest,
        SharedStatusRequest,
    }
)

# What a request to load or unload has that only Triton reads; None for nothing.
_CONTROL_EXTENSIONS: Mapping[type[Call[Any]], Callable[[Any], str | None]] = {
    ModelLoadRequest: lambda call: "no parameters of loading" if call.parameters else None,
    ModelUnloadRequest: lambda call: "no unloading of dependents" if call.dependents else None,
}


class DialectCapabilities(Protocol):
    """The features of a kind of server that matter here."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def has_index(self) -> bool: ...  # noqa: D102
    @property
    def has_extensions(self) -> bool: ...  # noqa: D102
    @property
    def has_control(self) -> bool: ...  # noqa: D102


def require_enabled(kind: type[Call[Any]], extensions: Extensions) -> object:
    """Refuse a kind of call that is off, before its message is read.

    Returns:
        The value of its option; None for a kind without one.

    Raises:
        Unsupported: It is off.
    """
    gate = _GATES.get(kind)
    if gate is None:
        return None
    option, what = gate
    value: object = getattr(extensions, option)
    if value in (False, OFF):
        raise Unsupported(f"{what}: not enabled ({how_to_enable(option)})")
    return value


def apply_policy(
    call: Call[Any], extensions: Extensions, limits: MessageLimits = DEFAULT_LIMITS
) -> Call[Any]:
    """Return *call* as the listener's options allow it.

    Raises:
        Unsupported: It is off.
        InvalidRequest: A model's name or its configuration is not allowed.
    """
    value = require_enabled(type(call), extensions)
    allow = _ALLOW.get(type(call))
    return call if allow is None else allow(call, value, extensions, limits)


def _settings(
    call: TraceSettingRequest | LogSettingsRequest, value: object, *_unused: object
) -> Call[Any]:
    if value == READ and call.changes:
        option, what = _GATES[type(call)]
        raise Unsupported(
            f"changes of {what}: not enabled ({how_to_enable(option)})", model=call.model
        )
    return call


def _own(
    call: ModelStatisticsRequest | LogSettingsRequest, value: object, *_unused: object
) -> Call[Any]:
    if value != GATEWAY:
        return call
    return call.changed(own=True).with_context(origin=call.context.origin)


def _log(call: LogSettingsRequest, value: object, *_unused: object) -> Call[Any]:
    _settings(call, value)
    return _own(call, value)


def _load(
    call: ModelLoadRequest, value: object, extensions: Extensions, limits: MessageLimits
) -> Call[Any]:
    _unload(call, value)
    if not extensions.model_files:
        _refuse_files(call)
    if CONFIG in call.parameters:
        return _with_config(call, extensions.model_config, limits)
    return call


def _unload(
    call: ModelLoadRequest | ModelUnloadRequest, _value: object, *_unused: object
) -> Call[Any]:
    check_folder_name(call.model.name if call.model else "")
    return call


# What is allowed of a call, from the value of its option, all options and the limits.
_ALLOW: Mapping[type[Call[Any]], Callable[[Any, object, Extensions, MessageLimits], Call[Any]]] = {
    TraceSettingRequest: _settings,
    LogSettingsRequest: _log,
    ModelStatisticsRequest: _own,
    ModelLoadRequest: _load,
    ModelUnloadRequest: _unload,
}


def _refuse_files(call: ModelLoadRequest) -> None:
    for key in call.parameters:
        if key.startswith(FILE):
            raise Unsupported(
                f"parameter {key!r}: files of models are not enabled "
                f"({how_to_enable('model_files')})",
                model=call.model,
            )


def _with_config(
    call: ModelLoadRequest, option: bool | str, limits: MessageLimits
) -> ModelLoadRequest:
    """Return *call* with a configuration that *option* allows."""
    if not option:
        raise Unsupported(
            f"parameter {CONFIG!r}: configurations of models are not enabled "
            f"({how_to_enable('model_config')})",
            model=call.model,
        )
    if option != LIMITED:
        return call
    text = limited_config(str(call.parameters[CONFIG]), limits)
    return call.changed(parameters={**call.parameters, CONFIG: text})


def advertised_extensions(reply: ServerMetadata, extensions: Extensions) -> ServerMetadata:
    """Return a server's metadata with the enabled extensions."""
    names = [
        name
        for name, options in _ADVERTISED
        if not any(getattr(extensions, option) in (False, OFF) for option in options)
    ]
    every = tuple(dict.fromkeys((*reply.extensions, *names)))
    return ServerMetadata(reply.name, reply.version, every)


def check_asked(call: Call[Any], dialect: DialectCapabilities) -> None:
    """Refuse a call that servers of *dialect* do not have, or would read only in part.

    Raises:
        Unsupported: The dialect cannot carry it.
    """
    kind, missing = type(call), None
    if kind in _TRITONS and not dialect.has_extensions:
        missing = f"no {words_of(call)}"
    elif kind in _CONTROL_EXTENSIONS and not dialect.has_control:
        missing = "no loading and unloading of models"
    elif kind in _CONTROL_EXTENSIONS and not dialect.has_extensions:
        missing = _CONTROL_EXTENSIONS[kind](call)
    if missing is not None:
        raise Unsupported(f"the dialect {dialect.name!r} has {missing}", model=call.model)


def check_extended(what: str, output: RequestedOutput | None, dialect: DialectCapabilities) -> None:
    """Refuse classes and shared memory that a server would ignore.

    Args:
        what: The tensor, for errors.
        output: The requested output; None for an input in shared memory.
        dialect: The server's.

    Raises:
        Unsupported: It does not have the extension.
    """
    if dialect.has_extensions:
        return
    if output is None:
        request = "is in shared memory"
    elif output.classes:
        request = f"is requested as {output.classes} classes"
    else:
        request = "is requested in shared memory"
    raise Unsupported(f"{what} {request}, which the dialect {dialect.name!r} does not have")
